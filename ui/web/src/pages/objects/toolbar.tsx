// The filters of a list as fields. Their values are in the address.

import { useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useState } from "react";
import type { Filter } from "../../api/kinds";

// Fields that are shown at once; further ones open below them.
const FIRST = 4;

export type Search = Record<string, string | undefined>;
export const useListSearch = () => useSearch({ strict: false }) as Search;

/** Changes the address; what is undefined goes. */
export function useSetSearch() {
  const navigate = useNavigate();
  return (changed: Search) =>
    void navigate({ to: ".", search: (known: object) => ({ ...known, ...changed }), replace: true } as never);
}

/** Values by the names of filters that are set. */
export const filledIn = (filters: Filter[], search: Search): Record<string, string> =>
  Object.fromEntries(filters.flatMap(({ name }) => (search[name] ? [[name, search[name]]] : [])));

export function Toolbar({ filters, children, shown }: { filters: Filter[]; children?: ReactNode; shown?: string }) {
  const search = useListSearch();
  const [first, more] = [filters.slice(0, FIRST), filters.slice(FIRST)];
  return (
    <form className="inline filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      {children}
      {first.map((filter) => (
        <Field key={filter.name} filter={filter} />
      ))}
      {more.length > 0 && (
        <details className="more" open={more.some(({ name }) => search[name]) || undefined}>
          <summary>More filters</summary>
          <div className="inline filters">
            {more.map((filter) => (
              <Field key={filter.name} filter={filter} />
            ))}
          </div>
        </details>
      )}
      {shown !== undefined && (
        <p className="muted small" role="status">
          {shown}
        </p>
      )}
    </form>
  );
}

const WORDS: Record<string, string> = { true: "yes", false: "no" };

function Field({ filter: { name, label, text, values, is_pattern } }: { filter: Filter }) {
  const value = useListSearch()[name] ?? "";
  const set = useSetSearch();
  const change = (changed: string) => set({ [name]: changed || undefined });
  if (values) return <Selected label={label} value={value} values={values} onChange={change} help={text} />;
  return (
    <Typed label={label} value={value} onChange={change} help={text} placeholder={is_pattern ? "* for any" : ""} />
  );
}

/** A field with a choice of values. */
export function Selected({
  label,
  value,
  values,
  help,
  onChange,
}: {
  label: string;
  value: string;
  values: string[];
  help?: string;
  onChange: (value: string) => void;
}) {
  return (
    <label title={help}>
      {label}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">any</option>
        {values.map((one) => (
          <option key={one} value={one}>
            {WORDS[one] ?? one}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A field whose value goes into the address when the user stops typing. */
export function Typed({
  label,
  value,
  help,
  placeholder = "",
  onChange,
}: {
  label: string;
  value: string;
  help?: string;
  placeholder?: string;
  onChange: (value: string) => void;
}) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), 200);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label title={help}>
      {label}
      <input
        type="search"
        spellCheck={false}
        placeholder={placeholder}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
    </label>
  );
}

// A field with a choice of given options.

import { useQuery } from "@tanstack/react-query";
import { useId } from "react";
import { namesOf } from "../api/client";

/** The names of all objects of a kind. */
export function useNames(kind: string): string[] {
  const { data } = useQuery({ queryKey: ["names", kind], queryFn: () => namesOf(kind) });
  return data ?? [];
}

export function Choice({
  label,
  value,
  options,
  onChange,
  help,
  problem,
  none = "Choose…",
}: {
  label: string;
  value: string;
  options: [string, string][];
  onChange: (value: string) => void;
  help?: string | undefined;
  problem?: string | undefined;
  none?: string;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select
        id={id}
        value={value}
        aria-describedby={help && `${id}-help`}
        onChange={(event) => onChange(event.target.value)}>
        <option value="">{none}</option>
        {options.map(([name, text]) => (
          <option key={name} value={name}>
            {text}
          </option>
        ))}
      </select>
      {help && (
        <p className="help" id={`${id}-help`}>
          {help}
        </p>
      )}
      {problem && (
        <p className="err small" role="alert">
          {problem}
        </p>
      )}
    </div>
  );
}

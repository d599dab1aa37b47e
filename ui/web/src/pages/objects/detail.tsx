// One object of any kind: its state and the reason, what its kind shows of it, its definition, and ways to copy it.

import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { type Kind, kindOf } from "../../api/kinds";
import { useObject } from "../../api/live";
import { Card, causeOf, Empty, State, stateOf } from "../../parts/card";
import { CopyAs } from "../../parts/copy";
import type { Tab } from "../../parts/kind-page";
import { InFile, ReadOnly } from "../../parts/read-only";
import { keepTimeZone } from "../../parts/time";
import { canCreate, useKindPage } from "../registry";
import { ObjectMenu } from "./menu";

export type Members = Record<string, unknown>;

const DEFINITION: Tab<Members> = {
  title: "Definition",
  show: ({ object }) => (
    <Card title="Definition" note="as the API shows it">
      <pre className="source">{JSON.stringify(object, null, 2)}</pre>
    </Card>
  ),
};

export function ObjectPage() {
  const { kind: path, name } = useParams({ strict: false }) as { kind: string; name: string };
  const kind = kindOf(path);
  return kind ? <Shown key={`${path}/${name}`} kind={kind} name={name} /> : <NotFound />;
}

function Shown({ kind, name }: { kind: Kind; name: string }) {
  const page = useKindPage(kind.path);
  const navigate = useNavigate();
  const { tab } = useSearch({ strict: false }) as { tab?: string };
  const api = `${kind.api}/${encodeURIComponent(name)}`;
  const { data, problem } = useObject(kind.api, name);
  const { object, etag = "", fixed_by = null } = data ?? {};
  if (!object || !page) {
    return (
      <div className="page">
        <h1>{name}</h1>
        {!problem && !(data && !object) && (
          <p className="muted" role="status">
            Loading…
          </p>
        )}
        {(problem || (data && !object)) && (
          <Empty>
            {problem?.detail ?? `There is no ${kind.one.toLowerCase()} ${name}.`}{" "}
            <Link to="/$kind" params={{ kind: kind.path }}>
              All {kind.many.toLowerCase()}
            </Link>
          </Empty>
        )}
      </div>
    );
  }
  const [state, cause] = [stateOf(object), causeOf(object)];
  const tabs: Tab<Members>[] = [...page.tabs, DEFINITION];
  const shown = tabs.find(({ title }) => title.toLowerCase() === tab) ?? tabs[0]!;
  return (
    <div className="page">
      <div className="title">
        <div>
          <p className="muted small">
            <Link to="/$kind" params={{ kind: kind.path }} search={keepTimeZone as never}>
              {kind.many}
            </Link>
          </p>
          <h1>
            {name} {state && <State state={state} />}
          </h1>
          {cause && <p>{cause}</p>}
          {typeof object.description === "string" && object.description && (
            <p className="muted">{object.description}</p>
          )}
          {fixed_by && (
            <p className="note" role="status">
              <ReadOnly file={fixed_by} />
            </p>
          )}
          {problem && (
            <p className="muted" role="status">
              {problem.detail} Below is what the page knew.
            </p>
          )}
        </div>
        <div className="buttons">
          <CopyAs path={api} cli={`sluice ${kind.cli} show ${name}`} file={{ kind, name, spec: inFile(object) }} />
          <ObjectMenu
            kind={kind}
            row={{ name, etag, enable: object.enable, fixed_by }}
            onDeleted={() => void navigate({ to: "/$kind", params: { kind: kind.path } } as never)}
          />
        </div>
      </div>
      {tabs.length > 1 && (
        <nav className="tabs" aria-label={`Parts of ${name}`}>
          {tabs.map((one) => (
            <Link
              key={one.title}
              to="."
              search={
                ((known: Members) => ({
                  ...keepTimeZone(known),
                  tab: one === tabs[0] ? undefined : one.title.toLowerCase(),
                })) as never
              }
              activeOptions={{ exact: true, includeSearch: true, explicitUndefined: true }}
              aria-current={one === shown ? "page" : undefined}>
              {one.title}
            </Link>
          ))}
        </nav>
      )}
      <InFile value={fixed_by}>
        <shown.show key={shown.title} name={name} object={object} etag={etag} />
      </InFile>
    </div>
  );
}

export function NewPage() {
  const { kind: path } = useParams({ strict: false }) as { kind: string };
  const kind = kindOf(path);
  const page = useKindPage(path);
  if (!kind || !canCreate(path)) return <NotFound />;
  return (
    <div className="page">
      <div>
        <p className="muted small">
          <Link to="/$kind" params={{ kind: path }} search={keepTimeZone as never}>
            {kind.many}
          </Link>
        </p>
        <h1>New {kind.one.toLowerCase()}</h1>
        <p className="muted">{kind.purpose}</p>
      </div>
      {page && <page.create />}
    </div>
  );
}

/** SQL has its FROM, which the server shows as a member. */
const inFile = ({ from, ...rest }: Members) => (rest.language === "jq" ? { ...rest, from } : rest);

export function NotFound() {
  return (
    <div className="page">
      <h1>Page not found</h1>
      <p>
        The address has no page. <Link to="/">Go to the start page</Link>, or press Ctrl K and search.
      </p>
    </div>
  );
}

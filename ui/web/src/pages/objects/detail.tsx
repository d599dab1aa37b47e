// One object of any kind: its state and the reason, what its kind shows of it, its definition, and ways to copy it.

import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Suspense } from "react";
import { type Kind, kindOf, resourceOf } from "../../api/kinds";
import { useObject } from "../../api/live";
import { lazyPart } from "../../api/modules";
import { useMay } from "../../api/rights";
import { Card, Empty, Loading, State, causeOf, stateOf } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import type { Tab } from "../../parts/kind-page";
import { InFile, ReadOnly } from "../../parts/read-only";
import { quoted } from "../../parts/schema-form";
import { keepTimeZone } from "../../parts/time";
import { useKindPage } from "../registry";
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

const ResourceItem = lazyPart(() => import("./resource"));

/** The page of an item of a list; without a path that of the address. */
export function ObjectPage({ path: known }: { path?: string }) {
  const { kind: inAddress, name } = useParams({ strict: false }) as { kind?: string; name: string };
  const path = known ?? inAddress!;
  const [kind, resource] = [kindOf(path), resourceOf(path)];
  const key = `${path}/${name}`;
  if (kind) return <Shown key={key} kind={kind} name={name} />;
  if (!resource?.show) return <NotFound />;
  return (
    <Suspense>
      <ResourceItem key={key} resource={resource} name={name} />
    </Suspense>
  );
}

const ListLink = ({ kind, children }: { kind: Kind; children: string }) => (
  <Link to={`/${kind.path}` as never} search={keepTimeZone as never}>
    {children}
  </Link>
);

function Shown({ kind, name }: { kind: Kind; name: string }) {
  const may = useMay();
  const page = useKindPage(kind);
  const navigate = useNavigate();
  const { tab } = useSearch({ strict: false }) as { tab?: string };
  const api = `${kind.api}/${encodeURIComponent(name)}`;
  const { data, problem } = useObject(kind.api, name);
  const { object, etag = "", fixed_by = null } = data ?? {};
  if (!object || !page) {
    return (
      <div className="page">
        <h1>{name}</h1>
        {!problem && !(data && !object) && <Loading />}
        {(problem || (data && !object)) && (
          <Empty>
            {problem?.detail ?? `There is no ${kind.one.toLowerCase()} ${name}.`}{" "}
            <ListLink kind={kind}>{`All ${kind.many.toLowerCase()}`}</ListLink>
          </Empty>
        )}
      </div>
    );
  }
  const [state, cause] = [stateOf(object), causeOf(object)];
  const mayChange = may(kind.right, "change");
  const tabs: Tab<Members>[] = [...page.tabs, DEFINITION];
  const shown = tabs.find(({ title }) => title.toLowerCase() === tab) ?? tabs[0]!;
  return (
    <div className="page">
      <div className="title">
        <div>
          <p className="muted small">
            <ListLink kind={kind}>{kind.many}</ListLink>
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
          {!mayChange && <p className="muted small">Your role may read this, and not change it.</p>}
          {problem && (
            <p className="muted" role="status">
              {problem.detail} Below is what the page knew.
            </p>
          )}
        </div>
        <div className="buttons">
          {may("audit-entries", "read") && (
            <Link
              className="button"
              to={"/audit-log" as never}
              search={((known: Members) => ({ ...keepTimeZone(known), kind: kind.name, name })) as never}>
              History
            </Link>
          )}
          <CopyAs
            path={api}
            cli={`sluice ${kind.cli} show ${word(name)}`}
            file={kind.file === null ? undefined : { kind, name, spec: inFile(object) }}
          />
          <ObjectMenu
            kind={kind}
            row={{ name, etag, enable: object.enable, state: object.state, fixed_by }}
            onDeleted={() => void navigate({ to: `/${kind.path}` } as never)}
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
      <InFile value={mayChange ? fixed_by : (fixed_by ?? "")}>
        <shown.show key={shown.title} name={name} object={object} etag={etag} />
      </InFile>
    </div>
  );
}

export function NewPage({ path: known }: { path?: string }) {
  const { kind: inAddress } = useParams({ strict: false }) as { kind?: string };
  const kind = kindOf(known ?? inAddress!);
  return kind?.writes.includes("create") ? <New key={kind.path} kind={kind} /> : <NotFound />;
}

function New({ kind }: { kind: Kind }) {
  const page = useKindPage(kind);
  const may = useMay();
  return (
    <div className="page">
      <div>
        <p className="muted small">
          <ListLink kind={kind}>{kind.many}</ListLink>
        </p>
        <h1>New {kind.one.toLowerCase()}</h1>
        <p className="muted">{quoted(kind.purpose)}</p>
      </div>
      {page && may(kind.right, "change") && <page.create />}
      {!may(kind.right, "change") && (
        <Empty>{`Your role may not create ${kind.many.toLowerCase()}. Ask an administrator for one that may.`}</Empty>
      )}
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

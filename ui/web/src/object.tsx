// One object of any kind: its state and the reason, its definition, and how to have it elsewhere.

import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { getAny } from "./api";
import { CopyAs, hocon } from "./copyas";
import { kindOf } from "./kinds";
import { useEvery } from "./live";
import { Card, Empty, State } from "./parts";

const SHOWN_BY_STATE = new Set(["state", "status", "status_reason", "reason", "problem"]);
/** What the server adds, and a file cannot have. */
const ADDED = new Set([...SHOWN_BY_STATE, "name", "version", "created_at", "updated_at", "from", "columns", "warnings", "action_details", "metrics",
  "last_error", "kind", "epoch", "positions", "records", "bytes", "oldest", "newest", "records_per_s", "lag_records", "rows", "dead_letters", "report",
  "lag_s", "last_commit_at", "last_commit_rows", "node_status", "resource_opts_effective"]);

export function ObjectPage() {
  const { kind: path, name } = useParams({ strict: false }) as { kind: string; name: string };
  const every = useEvery(2000);
  const kind = kindOf(path);
  const api = `${kind?.api}/${encodeURIComponent(name)}`;
  const { data, error } = useQuery({
    queryKey: ["object", path, name], queryFn: () => getAny(api), enabled: kind !== undefined, refetchInterval: every,
  });
  if (!kind) return <NotFound />;
  if (!data) return <div className="page"><h1>{name}</h1>{error && <Empty>{error.message}</Empty>}</div>;
  const state = String(data.state ?? data.status ?? (data.enable === false ? "disabled" : ""));
  const reason = data.problem ?? data.reason ?? data.status_reason;
  const spec = Object.fromEntries(Object.entries(data).filter(([key, value]) => !ADDED.has(key) && value !== "" && value !== null && !(Array.isArray(value) && !value.length)));
  return (
    <div className="page">
      <div className="title">
        <div>
          <p className="muted small">{kind.one}</p>
          <h1>{name} {state && <State state={state} />}</h1>
          {typeof reason === "string" && reason && <p>{reason}</p>}
          {typeof data.description === "string" && data.description && <p className="muted">{data.description}</p>}
        </div>
        <CopyAs path={api} cli={`sluice ${kind.cli} show ${name}`} hocon={hoconOf(kind.file, name, spec)} />
      </div>
      {typeof data.sql === "string" && <Card title="SQL"><pre className="source">{data.sql}</pre></Card>}
      <Card title="Definition" note="as the API shows it"><pre className="source">{JSON.stringify(data, null, 2)}</pre></Card>
    </div>
  );
}

// Actions, sources and connectors are named by type and name; a key with a colon needs quotes.
function hoconOf(file: string, name: string, spec: Record<string, unknown>): string {
  const key = /^[A-Za-z_][\w-]*$/.test(name) ? name : JSON.stringify(name);
  return file === "lake.tables" ? `${file} = [ ${hocon({ name, ...spec })} ]` : `${file}.${key} ${hocon(spec)}`;
}

export function NotFound() {
  return (
    <div className="page">
      <h1>There is no such page</h1>
      <p>The address has no page. <Link to="/">Go to the start page</Link>, or press Ctrl K and search.</p>
    </div>
  );
}

// Creating a bridge: the catalogue of types, then its settings.

import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useMemo } from "react";
import { useList } from "../../api/live";
import { Card, Empty, ObjectLink, State, stateOf, Why } from "../../parts/card";
import type { JsonSchema } from "../../parts/schema-form";
import { Table } from "../../parts/table";
import { keepTimeZone } from "../../parts/time";
import { Settings } from "./settings";
import { type Connector, type Members, type Path, type TypeView, useTypes } from "./shared";

/** The types that there are, with what each is for and needs. */
function Catalogue({ types }: { types: TypeView[] }) {
  return (
    <ul className="catalogue">
      {types.map(({ name, title, summary, is_installed: isThere, problem, parameters }) => {
        const needed = ((parameters.connector as JsonSchema).required ?? []).map((one) => one.replaceAll("_", " "));
        const ways = [parameters.action && "sends rows of rules", parameters.source && "takes messages in"]
          .filter(Boolean)
          .join(" · ");
        return (
          <li key={name} className="card">
            <h2>
              {isThere ? (
                <Link
                  to="/new/$kind"
                  params={{ kind: "connectors" }}
                  search={((known: object) => ({ ...keepTimeZone(known), type: name })) as never}>
                  {title}
                </Link>
              ) : (
                title
              )}
            </h2>
            <p>{summary}</p>
            <p className="muted small">{ways}</p>
            <p className="muted small">Required: {needed.join(", ") || "nothing, the defaults do"}</p>
            {problem && <Why>{problem}</Why>}
          </li>
        );
      })}
    </ul>
  );
}

function Chosen({ children }: { children: ReactNode }) {
  return (
    <p className="muted">
      {children}{" "}
      <Link to="." search={keepTimeZone as never}>
        Choose another
      </Link>
    </p>
  );
}

export function NewConnector() {
  const types = useTypes();
  const { type } = useSearch({ strict: false }) as { type?: string };
  const open = useOpen("connectors");
  const initial = useMemo(() => ({ type }), [type]);
  const chosen = types.find(({ name, is_installed: isThere }) => name === type && isThere);
  if (!chosen) return <Catalogue types={types} />;
  return (
    <>
      <Chosen>
        <strong>{chosen.title}</strong>: {chosen.summary}
      </Chosen>
      <Settings key={type} path="connectors" initial={initial} skip={["type"]} onSaved={open} />
    </>
  );
}

export function NewMember({ path }: { path: "actions" | "sources" }) {
  const types = useTypes();
  const connectors = useList<Connector>("connectors").list?.items;
  const { connector: name } = useSearch({ strict: false }) as { connector?: string };
  const open = useOpen(path);
  const member = path.slice(0, -1);
  const able = connectors?.filter(({ type }) => types.some((one) => one.name === type && member in one.parameters));
  const chosen = able?.find((one) => one.name === name);
  const initial = useMemo(() => ({ type: chosen?.type, connector: name, parameters: {} }), [chosen?.type, name]);
  if (!able) return null;
  if (chosen)
    return (
      <>
        <Chosen>
          Over connector <ObjectLink kind="connectors" name={chosen.name} />.
        </Chosen>
        <Settings key={name} path={path} initial={initial} skip={["type", "connector"]} onSaved={open} />
      </>
    );
  return (
    <Card title="Over which connector?">
      {able.length ? (
        <Table
          label="Connectors"
          rows={able}
          keyOf={(one) => one.name}
          columns={[
            {
              title: "Connector",
              show: (one) => (
                <Link
                  className="name"
                  to="/new/$kind"
                  params={{ kind: path }}
                  search={((known: object) => ({ ...keepTimeZone(known), connector: one.name })) as never}>
                  {one.name}
                </Link>
              ),
            },
            { title: "Type", show: (one) => types.find((type) => type.name === one.type)?.title ?? one.type },
            {
              title: "State",
              kind: "fit",
              show: (one) => (
                <>
                  <State state={stateOf(one as never)} />
                  <Why>{one.status_reason}</Why>
                </>
              ),
            },
          ]}
        />
      ) : (
        <Empty>No connector that has {path} yet.</Empty>
      )}
      <p>
        <Link to="/new/$kind" params={{ kind: "connectors" }} search={keepTimeZone as never}>
          New connector
        </Link>
      </p>
    </Card>
  );
}

function useOpen(kind: Path) {
  const navigate = useNavigate();
  return ({ name }: Members) =>
    void navigate({ to: "/$kind/$name", params: { kind, name: String(name) }, search: keepTimeZone } as never);
}

// Access rules: over the list, the decision for a client that need not be connected.

import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { call } from "../../api/client";
import type { components } from "../../api/openapi";
import { useMay } from "../../api/rights";
import { Card, LoadFailure, ObjectLink, State, Why } from "../../parts/card";
import { Table } from "../../parts/table";

type Decision = components["schemas"]["AccessDecision"];
const ACTIONS = ["publish", "subscribe", "connect"] as const;
const EMPTY = { clientid: "", username: "", password: "", peerhost: "", action: "publish", topic: "" };

/** The body of the check: a client without a password counts as authenticated. */
function checked({ clientid, username, password, peerhost, action, topic }: typeof EMPTY) {
  const client = {
    clientid,
    ...(username && { username }),
    ...(password && { password }),
    ...(peerhost && { peerhost }),
  };
  return action === "connect" ? { client } : { client, action, topic };
}

/** Over the list of access rules. */
export const above = () => <Simulator />;

function Simulator() {
  const [asked, ask] = useState<typeof EMPTY>();
  const [form, setForm] = useState(EMPTY);
  const { data, error, isFetching } = useQuery({
    queryKey: ["access", asked],
    queryFn: async ({ signal }) =>
      (await call<Decision>("POST", "access:check", { body: checked(asked!), signal })).body,
    enabled: asked !== undefined,
    gcTime: 0, // a password is in the key
    retry: false,
  });
  if (!useMay()("decisions", "try")) return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    ask({ ...form });
  };
  const field = (name: keyof typeof EMPTY, label: string, placeholder: string, type = "text") => (
    <label>
      {label}
      <input
        type={type}
        autoComplete="off"
        value={form[name]}
        placeholder={placeholder}
        onChange={({ target }) => setForm({ ...form, [name]: target.value })}
      />
    </label>
  );
  return (
    <Card title="What may a client do?">
      <form className="filters" onSubmit={submit}>
        {field("clientid", "Client identifier", "meter-7")}
        {field("username", "User name", "none")}
        {field("password", "Password", "not checked", "password")}
        {field("peerhost", "Address", "any")}
        <label>
          Action
          <select value={form.action} onChange={({ target }) => setForm({ ...form, action: target.value })}>
            {ACTIONS.map((action) => (
              <option key={action}>{action}</option>
            ))}
          </select>
        </label>
        {form.action !== "connect" && field("topic", "Topic", "meters/7")}
        <button type="submit" disabled={isFetching || (form.action !== "connect" && !form.topic)}>
          Check
        </button>
      </form>
      <LoadFailure error={error} />
      {isFetching && !data && (
        <p className="muted" role="status">
          Checking…
        </p>
      )}
      {data && asked && <Result decision={data} asked={asked} />}
    </Card>
  );
}

const deciding = ({ decided_by: by, ban, authentication, authorization }: Decision) => {
  if (by === "ban") return `Ban of ${ban?.as} ${ban?.who}${ban?.reason ? `: ${ban.reason}` : ""}.`;
  if (by === "authentication") {
    const { mechanism, why } = authentication ?? {};
    return `${mechanism ? `Authenticator ${mechanism}` : "No authenticator"} decides${why ? `: ${why}` : ""}.`;
  }
  const { rule, source } = authorization ?? {};
  if (rule) return `Rule ${rule} of the source ${source} decides.`;
  return source === "superuser" ? "Access rules do not apply to a superuser." : `No rule matches: ${source}.`;
};

function Result({ decision, asked }: { decision: Decision; asked: typeof EMPTY }) {
  const { allowed, authorization, rules = [] } = decision;
  const what = asked.action === "connect" ? "connect" : `${asked.action} ${asked.topic}`;
  const withheld = authorization?.withheld ?? [];
  return (
    <div aria-live="polite">
      <p>
        <State state={allowed ? "ok" : "failed"}>
          {asked.clientid || "The client"} {allowed ? "may" : "may not"} {what}
        </State>
        <Why>{deciding(decision)}</Why>
        <Why>{withheld.length > 0 && `Not considered, since a name is not verified: ${withheld.join(", ")}.`}</Why>
      </p>
      {rules.length > 0 && (
        <Table
          label="Rules that apply to the client"
          rows={rules}
          keyOf={({ name, source }, at) => `${source} ${name} ${at}`}
          columns={[
            {
              title: "Rule",
              show: ({ name, source }) => (
                <>
                  {source === "built_in" ? <ObjectLink kind="access/rules" name={name} /> : name}
                  <Why>{source}</Why>
                </>
              ),
            },
            { title: "Permission", kind: "fit", show: ({ permission }) => permission },
            { title: "Topics", kind: "why", show: ({ topics }) => <code className="wraps">{topics.join(", ")}</code> },
            {
              title: "Decides",
              kind: "fit",
              show: ({ name, source }) =>
                authorization?.rule === name && authorization.source === source ? <State state="ok">yes</State> : "",
            },
          ]}
        />
      )}
    </div>
  );
}

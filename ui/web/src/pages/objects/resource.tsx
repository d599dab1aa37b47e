// One item of a live list: all that the server says of it, and what can be done with it.

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { Suspense } from "react";
import { getAny, Refused } from "../../api/client";
import { isOffered, requestOf, type Resource } from "../../api/kinds";
import { useEvery } from "../../api/live";
import { Card, Empty, LoadFailure, Loading, State, causeOf, stateOf } from "../../parts/card";
import { word } from "../../parts/copy";
import { CopyAs } from "../../parts/copy-as";
import { ExplainButton, isMessage, itemOriginal } from "../../parts/explaining";
import { keepTimeZone } from "../../parts/time";
import { Facts } from "../../parts/value";
import { ITEM_PAGES } from "../registry";
import { useVerbs, VerbButtons, verbsOf } from "./verbs";

const EVERY_MS = 3000;

export default function ResourceItem({ resource, name }: { resource: Resource; name: string }) {
  const { path, query } = requestOf(resource.show!, name);
  const navigate = useNavigate();
  const { ask, dialog, status } = useVerbs(resource, ({ method }) => {
    if (method === "DELETE") void navigate({ to: `/${resource.path}`, search: keepTimeZone } as never);
  });
  const { data, error } = useQuery({
    queryKey: ["item", path, query],
    queryFn: ({ signal }) => getAny(path, { query, signal }),
    refetchInterval: useEvery(EVERY_MS),
  });
  const isGone = error instanceof Refused && error.status === 404;
  const own = ITEM_PAGES[resource.path];
  const asked = Object.keys(query).length ? `${path}?${new URLSearchParams(query)}` : path;
  const all = (
    <Link to={`/${resource.path}` as never} search={keepTimeZone as never}>
      {resource.many}
    </Link>
  );
  return (
    <div className="page">
      <div className="title">
        <div>
          <p className="muted small">{all}</p>
          <h1>
            {name} {data && stateOf(data) && <State state={stateOf(data)} />}
          </h1>
          {data && causeOf(data) && <p>{causeOf(data)}</p>}
        </div>
        {data && !isGone && (
          <div className="buttons">
            <VerbButtons verbs={verbsOf(resource).filter((verb) => isOffered(verb, data))} names={[name]} ask={ask} />
            <Suspense>{own?.verbs && <own.verbs name={name} />}</Suspense>
            {isMessage(data) && <ExplainButton topic={String(data.topic)} of={itemOriginal(data)} />}
            <CopyAs path={asked} cli={resource.cli && `sluice ${resource.cli} show ${word(name)}`} />
          </div>
        )}
      </div>
      {status}
      {!isGone && <LoadFailure error={error} />}
      {isGone && (own?.gone ? <own.gone resource={resource} name={name} /> : <Empty>{error.message}</Empty>)}
      {!data && !error && <Loading />}
      {data && !isGone && own && (
        <Suspense>
          <own.show resource={resource} name={name} data={data} />
        </Suspense>
      )}
      {data && !isGone && !own && (
        <Card title={resource.one}>
          <Facts object={data} label={name} />
        </Card>
      )}
      {dialog}
    </div>
  );
}

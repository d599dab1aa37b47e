// Charts of the history of metrics, over a time range that the address names.

import { useNavigate, useSearch } from "@tanstack/react-router";
import { useContext, useMemo } from "react";
import type { MetricsWindow } from "../api/client";
import { Paused, useHistory } from "../api/live";
import { State } from "./card";
import { Chart, dash, type Line } from "./chart";
import { word } from "./copy";
import { CopyAs } from "./copy-as";
import { count, counted, duration } from "./format";
import { type HistorySearch, RANGES } from "./ranges";
import { clock, useTimeZone } from "./time";

/** A line: the sum of series. */
type Part = { label: string; names: string[] };
/** A line for each value of a label. */
type Spread = { name: string; label: string };
export const perSecond = dash((value) => count(Number(value.toPrecision(3))));
export interface ChartOf {
  id: string;
  title: string;
  note?: string;
  show: (value: number | null | undefined) => string;
  parts: Part[];
  spread?: Spread;
}

function linesOf({ series }: MetricsWindow, parts: Part[], spread: Spread | undefined, length: number): Line[] {
  const spreadOut = series.filter(({ name }) => name === spread?.name);
  const valueOf = ({ labels }: (typeof series)[number]) => labels[spread?.label ?? ""] ?? "";
  // a value has a series of each cell
  const spreading = [...new Set(spreadOut.map(valueOf))].map((value) => ({
    label: wordsOf(value),
    values: combined(
      spreadOut.filter((one) => valueOf(one) === value),
      length,
    ),
  }));
  return [
    ...parts.map((part) => ({
      label: part.label,
      values: combined(
        series.filter(({ name }) => part.names.includes(name)),
        length,
      ),
    })),
    ...spreading.sort((a, b) => a.label.localeCompare(b.label)),
  ];
}

export const wordsOf = (name: string) => name.replaceAll("_", " ");

function combined(chosen: MetricsWindow["series"], length: number): (number | null)[] {
  return Array.from({ length }, (_, at) => {
    const values = chosen.map(({ mean }) => mean[at]).filter((value) => value !== null && value !== undefined);
    if (!values.length) return null;
    return values.reduce((sum, value) => sum + value, 0);
  });
}

const MOST_CHANGES = 50;

/** Charts over a time that the address names. */
export function Charts({ charts, labels = [] }: { charts: ChartOf[]; labels?: string[] }) {
  const timeZone = useTimeZone();
  const search = useSearch({ strict: false }) as HistorySearch;
  const navigate = useNavigate();
  const { paused } = useContext(Paused);
  const range = search.range ?? "5m";
  const zoom = search.from && search.to ? { from: search.from, to: search.to } : null;
  const seconds = RANGES[range]?.[1] ?? 300;
  const names = useMemo(
    () => [
      ...new Set(
        charts.flatMap(({ parts, spread }) => [
          ...(spread ? [spread.name] : []),
          ...parts.flatMap(({ names }) => names),
        ]),
      ),
    ],
    [charts],
  );
  const { data, error } = useHistory(names, seconds, zoom, labels);
  const change = (changed: HistorySearch) =>
    void navigate({ to: ".", search: (known: object) => ({ ...known, ...changed }), replace: true } as never);
  const drawn = useMemo(() => {
    if (!data) return null;
    const begin = Date.parse(data.from) / 1000;
    // The last interval is not over yet, so its means are not those of a whole one.
    const length = Math.max(0, Math.round((Date.parse(data.to) / 1000 - begin) / data.step_s) - (zoom ? 0 : 1));
    const times = Array.from({ length }, (_, at) => begin + at * data.step_s);
    const lines = charts.map(({ parts, spread }) => linesOf(data, parts, spread, length));
    const markers = data.markers.map(({ at, kind, name, what, by }) => ({
      ms: Date.parse(at),
      label: [kind, name, wordsOf(what), by && `by ${by}`].filter(Boolean).join(" "),
    }));
    return { times, lines, markers, step: data.step_s };
  }, [data]);
  const query = [...names.slice(0, 3).map((name) => `names=${name}`), ...labels.map((label) => `labels=${label}`)];
  const path = `metrics/history?${query.join("&")}`;
  return (
    <section aria-label="Over time">
      <div className="toolbar">
        <div className="choice" role="group" aria-label="Time range">
          {Object.entries(RANGES).map(([key, [name]]) => (
            <button
              key={key}
              type="button"
              aria-pressed={!zoom && key === range}
              onClick={() => change({ range: key === "5m" ? undefined : key, from: undefined, to: undefined })}>
              {name}
            </button>
          ))}
        </div>
        <p className="muted small">
          {zoom ? (
            <>
              {clock(zoom.from, timeZone, "full")} to {clock(zoom.to, timeZone, "full")}{" "}
              <button type="button" className="quiet" onClick={() => change({ from: undefined, to: undefined })}>
                Back to live
              </button>
            </>
          ) : paused ? (
            "Paused"
          ) : (
            "Drag across a chart to zoom all of them."
          )}
          {drawn && ` ${duration(drawn.step)} per value, ${timeZone}.`}
        </p>
        <CopyAs
          path={path}
          cli={[
            `sluice metrics history ${names.slice(0, 3).join(" ")}`,
            ...labels.map((label) => `--label ${word(label)}`),
            `--last ${range}`,
          ].join(" ")}
        />
      </div>
      {error && !data && (
        <p>
          <State state="failed">{error.message}</State>
        </p>
      )}
      <div className="charts">
        {charts.map(({ id, title, note, show, parts }, at) => (
          <Chart
            key={id}
            title={title}
            note={note}
            show={show}
            timeZone={timeZone}
            times={drawn?.times ?? []}
            lines={drawn?.lines[at] ?? parts.map(({ label }) => ({ label, values: [] }))}
            markers={drawn?.markers ?? []}
            isTable={search.table === id}
            setTable={(isTable) => change({ table: isTable ? id : undefined })}
            zoom={(from, to) => change({ from, to })}
          />
        ))}
      </div>
      {drawn && drawn.markers.length > 0 && (
        <details className="changes">
          <summary>{counted(drawn.markers.length, "change")} in this time</summary>
          <ul className="plain">
            {drawn.markers
              .slice(-MOST_CHANGES)
              .reverse()
              .map(({ ms, label }, at) => (
                <li key={at}>
                  <span className="muted">{clock(ms, timeZone, "full")}</span> {label}
                </li>
              ))}
          </ul>
        </details>
      )}
    </section>
  );
}

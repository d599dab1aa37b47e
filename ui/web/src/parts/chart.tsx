// Lines over time, drawn by uPlot. Charts of a page share the crosshair and the zoom; a gap in the data is a gap in the
// line. Each has a summary in words, and its values as a table.

import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import { download } from "./copy";
import { UNKNOWN } from "./format";
import { Table } from "./table";
import { clock } from "./time";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
}
interface Marker {
  ms: number;
  label: string;
}

const HEIGHT = 150;
const DASHES = [[], [7, 4], [2, 4], [10, 3, 2, 3], [14, 4], [4, 2]];
const TABLE_ROWS = 60;
const LABEL_PX = 120;

interface Props {
  title: string;
  note?: string;
  times: number[]; // seconds since 1970
  lines: Line[];
  markers: Marker[];
  show: (value: number | null | undefined) => string;
  timeZone: string;
  isTable: boolean;
  setTable: (isTable: boolean) => void;
  zoom: (fromMs: number, toMs: number) => void;
}

/** Steps of an axis of bytes. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

export function Chart({ title, note, times, lines, markers, show, timeZone, isTable, setTable, zoom }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const scheme = useScheme();
  const latest = useRef({ markers, zoom, show });
  latest.current = { markers, zoom, show };
  const labels = lines.map(({ label }) => label).join();
  const data: uPlot.AlignedData = [times, ...lines.map(({ values }) => values)];

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const made = new uPlot(options(element, lines, timeZone, latest, setAt), data, element);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [labels, timeZone, scheme, isTable]);
  useEffect(() => plot.current?.setData(data), [times, lines]);

  const downloadPicture = async () => plot.current && download(title, "png", await picture(title, lines, plot.current));
  const shownAt = at ?? lastKnown(lines);
  const valueOf = ({ values }: Line) => show(shownAt === null ? null : values[shownAt]);
  const latestValues = lines.map((line) => `${line.label} ${valueOf(line)}`).join(", ");
  const summary = `${title}${note ? `, ${note}` : ""}, latest: ${latestValues}`;
  return (
    <section className="card chart" aria-label={title}>
      <div className="head">
        <h2>
          {title} {note && <small className="muted">{note}</small>}
        </h2>
        <div className="buttons">
          <button
            type="button"
            className="quiet"
            aria-label={`${title} as CSV`}
            onClick={() => download(title, "csv", csv(times, lines))}>
            CSV
          </button>
          {!isTable && (
            <button
              type="button"
              className="quiet"
              aria-label={`${title} as PNG`}
              onClick={() => void downloadPicture()}>
              PNG
            </button>
          )}
          <button
            type="button"
            className="quiet"
            aria-pressed={isTable}
            aria-label={`${title} as a table`}
            onClick={() => setTable(!isTable)}>
            Table
          </button>
        </div>
      </div>
      <p className="legend">
        {lines.map((line, index) => (
          <span key={line.label}>
            <svg viewBox="0 0 28 8" aria-hidden="true">
              <line x1="0" x2="28" y1="4" y2="4" className={`series-${index + 1}`} />
            </svg>
            {line.label} <strong>{valueOf(line)}</strong>
          </span>
        ))}
        <span className="muted at">
          {at !== null && times[at] !== undefined ? clock(times[at] * 1000, timeZone) : ""}
        </span>
      </p>
      {isTable ? (
        <Twin title={title} times={times} lines={lines} show={show} timeZone={timeZone} />
      ) : !lines.length && times.length ? (
        <p className="plot empty">Nothing was measured in this time.</p>
      ) : (
        <div className="plot" ref={place} role="img" aria-label={summary} />
      )}
    </section>
  );
}

function Twin({ title, times, lines, show, timeZone }: Pick<Props, "title" | "times" | "lines" | "show" | "timeZone">) {
  const rows = times.map((_, at) => times.length - 1 - at).slice(0, TABLE_ROWS);
  return (
    <Table
      label={`${title}, values`}
      kind="rows"
      keyOf={(at) => times[at] ?? at}
      rows={rows}
      columns={[
        { title: "Time", kind: "fit", show: (at) => clock((times[at] ?? 0) * 1000, timeZone, "full") },
        ...lines.map(({ label, values }) => ({
          title: label,
          kind: "num" as const,
          show: (at: number) => show(values[at]),
        })),
      ]}
    />
  );
}

function lastKnown(lines: Line[]): number | null {
  const last = Math.max(...lines.map(({ values }) => values.findLastIndex((value) => value !== null)));
  return last < 0 ? null : last;
}

function colourOf(element: HTMLElement, name: string): string {
  element.style.color = `var(--${name})`;
  const found = getComputedStyle(element).color;
  element.style.color = "";
  return found;
}

function options(
  element: HTMLElement,
  lines: Line[],
  timeZone: string,
  latest: { current: Pick<Props, "markers" | "zoom" | "show"> },
  setAt: (at: number | null) => void,
): uPlot.Options {
  const colour = (name: string) => colourOf(element, name);
  const font = "12px system-ui, sans-serif";
  const axis = { stroke: colour("muted"), font, ticks: { show: false }, grid: { stroke: colour("line"), width: 1 } };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), timeZone),
    cursor: { sync: { key: "page" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
    select: { show: true, left: 0, top: 0, width: 0, height: 0 },
    scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      {
        ...axis,
        grid: { show: false },
        values: (chart, splits) => {
          const span = (chart.scales.x?.max ?? 0) - (chart.scales.x?.min ?? 0);
          return splits.map((seconds) =>
            clock(seconds * 1000, timeZone, span > 2 * 86_400 ? "day" : span < 240 ? "time" : "minute"),
          );
        },
        size: 28,
        space: 70,
      },
      {
        ...axis,
        size: 64,
        ...(latest.current.show(2 ** 20).endsWith("MiB") && { incrs: POWERS }),
        values: (_, splits) => splits.map((value) => latest.current.show(value)),
        space: 28,
      },
    ],
    series: [
      {},
      ...lines.map(({ label }, index) => ({
        label,
        stroke: colour(`data-${index + 1}`),
        width: 1.75,
        dash: DASHES[index],
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: {
      setCursor: [(chart) => setAt(chart.cursor.idx ?? null)],
      setSelect: [
        (chart) => {
          if (chart.select.width < 4) return;
          const ms = (left: number) => Math.round(chart.posToVal(left, "x") * 1000);
          latest.current.zoom(ms(chart.select.left), ms(chart.select.left + chart.select.width));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      draw: [(chart) => drawMarkers(chart, latest.current.markers, colour("muted"))],
    },
  };
}

function drawMarkers({ ctx, bbox, valToPos }: uPlot, markers: Marker[], colour: string) {
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  // Those that are close share one label; the list below the charts names each.
  const groups: { x: number; labels: string[] }[] = [];
  for (const { ms, label } of markers) {
    const x = valToPos(ms / 1000, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const group = groups.at(-1);
    if (group && x - group.x < LABEL_PX * devicePixelRatio) group.labels.push(label);
    else groups.push({ x, labels: [label] });
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  for (const { x, labels } of groups) {
    const isBefore = bbox.left + bbox.width - x < LABEL_PX * devicePixelRatio;
    ctx.textAlign = isBefore ? "right" : "left";
    ctx.fillText(
      labels.length > 1 ? `${labels.length} changes` : (labels[0] ?? ""),
      x + (isBefore ? -4 : 4) * devicePixelRatio,
      bbox.top + 10 * devicePixelRatio,
    );
  }
  ctx.restore();
}

/** A cell that no spreadsheet takes for a formula. */
const cell = (text: string) => `"${text.replace(/^[=+\-@＝＋－＠\t\r\n]/, "'$&").replaceAll('"', '""')}"`;

function csv(times: number[], lines: Line[]): Blob {
  const head = ["time", ...lines.map(({ label }) => cell(label))].join();
  const rows = times.map((seconds, at) =>
    [new Date(seconds * 1000).toISOString(), ...lines.map(({ values }) => values[at] ?? "")].join(),
  );
  return new Blob([[head, ...rows, ""].join("\n")], { type: "text/csv" });
}

/** The chart as currently drawn, with its title and legend. */
async function picture(title: string, lines: Line[], { ctx: { canvas: drawn }, root }: uPlot): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  const [ctx, px, shade] = [
    canvas.getContext("2d")!,
    devicePixelRatio,
    getComputedStyle(root.closest(".card") ?? root),
  ];
  canvas.width = drawn.width;
  canvas.height = drawn.height + 56 * px;
  ctx.fillStyle = shade.backgroundColor;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(drawn, 0, 56 * px);
  ctx.scale(px, px);
  ctx.fillStyle = shade.color;
  ctx.font = "600 16px system-ui, sans-serif";
  ctx.fillText(title, 12, 24);
  ctx.font = "12px system-ui, sans-serif";
  let left = 12;
  for (const [at, { label }] of lines.entries()) {
    ctx.strokeStyle = colourOf(root, `data-${at + 1}`);
    ctx.lineWidth = 2;
    ctx.setLineDash(DASHES[at] ?? []);
    ctx.beginPath();
    ctx.moveTo(left, 42);
    ctx.lineTo(left + 28, 42);
    ctx.stroke();
    ctx.fillText(label, left + 34, 46);
    left += 50 + ctx.measureText(label).width;
  }
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** "light" or "dark", as shown now: canvases are drawn again when it changes. */
function useScheme(): string {
  const now = () => getComputedStyle(document.body).backgroundColor;
  const [scheme, setScheme] = useState(now);
  useEffect(() => {
    const change = () => setScheme(now());
    const media = matchMedia("(prefers-color-scheme: dark)");
    const watch = new MutationObserver(change);
    media.addEventListener("change", change);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      media.removeEventListener("change", change);
      watch.disconnect();
    };
  }, []);
  return scheme;
}

export const dash = (show: (value: number) => string) => (value: number | null | undefined) =>
  value === null || value === undefined ? UNKNOWN : show(value);

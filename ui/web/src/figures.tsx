// Figures with a label each, and times as people read them.

import type { ReactNode } from "react";
import { ago, UNKNOWN } from "./format";
import { useNow } from "./live";
import { clock } from "./preferences";
import { useZone } from "./shell";

interface Figure { label: string; value: ReactNode; unit?: string; under?: ReactNode }

export function Figures({ label, figures }: { label: string; figures: Figure[] }) {
  return (
    <section className="figures" aria-label={label}>
      {figures.map(({ label, value, unit, under }) => (
        <div className="figure" key={label}>
          <p className="label">{label}</p>
          <p className="value">{value} {unit && <small>{unit}</small>}</p>
          <div className="under">{under}</div>
        </div>
      ))}
    </section>
  );
}

/** "4 s ago", with the time on hover. */
export function Time({ at }: { at: string | null | undefined }) {
  const zone = useZone();
  const now = useNow();
  return at ? <time dateTime={at} title={clock(Date.parse(at), zone, "full")}>{ago(at, now)}</time> : <>{UNKNOWN}</>;
}

/** The time with its date. */
export function Moment({ at }: { at: string | null | undefined }) {
  const zone = useZone();
  return at ? <time dateTime={at} title={at}>{clock(Date.parse(at), zone, "full")}</time> : <>{UNKNOWN}</>;
}

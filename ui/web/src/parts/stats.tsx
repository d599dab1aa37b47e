// Figures, each with its label.

import type { ReactNode } from "react";

export interface Stat {
  label: string;
  /** In place of the label, where it is a link. */
  head?: ReactNode;
  value: ReactNode;
  unit?: string;
  under?: ReactNode;
  /** The exact value, on hover. */
  exact?: string;
  /** In smaller letters. */
  isLong?: boolean;
}

export function Stats({ label, id, stats }: { label: string; id?: string; stats: Stat[] }) {
  return (
    <section className="figures" aria-label={label} id={id}>
      {stats.map(({ label, head, value, unit, under, exact, isLong }) => (
        <div className="figure" key={label}>
          <p className="label">{head ?? label}</p>
          <p className={isLong ? "value long" : "value"} title={exact}>
            {value} {unit && <small>{unit}</small>}
          </p>
          <div className="under">{under}</div>
        </div>
      ))}
    </section>
  );
}

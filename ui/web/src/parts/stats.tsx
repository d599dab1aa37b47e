// Figures, each with its label.

import type { ReactNode } from "react";

interface Stat { label: string; value: ReactNode; unit?: string; under?: ReactNode }

export function Stats({ label, stats }: { label: string; stats: Stat[] }) {
  return (
    <section className="figures" aria-label={label}>
      {stats.map(({ label, value, unit, under }) => (
        <div className="figure" key={label}>
          <p className="label">{label}</p>
          <p className="value">{value} {unit && <small>{unit}</small>}</p>
          <div className="under">{under}</div>
        </div>
      ))}
    </section>
  );
}

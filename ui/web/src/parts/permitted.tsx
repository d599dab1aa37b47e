// What needs a right, and the sentence that users without it read instead.

import type { ReactNode } from "react";
import type { Does } from "../api/kinds";
import { useMay } from "../api/rights";

interface Props {
  /** What rights call the resource. */
  right: string;
  does: Does;
  /** What the role may not do, after "Your role may not". */
  to: string;
  children: ReactNode;
}

export const Permitted = ({ right, does, to, children }: Props) =>
  useMay()(right, does) ? children : <p className="muted">Your role may not {to}.</p>;

// The editor of SQL, schemas and settings. CodeMirror, which it is made of, is loaded when the first one is shown.

import { Suspense } from "react";
import { lazyPart } from "../api/modules";
import type { DifferenceProps, EditorProps, Finding } from "./codemirror";

const CodeMirror = lazyPart(() => import("./codemirror"));
const Merge = lazyPart(() => import("./codemirror").then(({ Merge }) => ({ default: Merge })));

export const Editor = (props: EditorProps) => (
  <Suspense fallback={<pre className="source">{props.value}</pre>}>
    <CodeMirror {...props} />
  </Suspense>
);

/** Two texts, side by side where there is room, else as one with both. */
export const Difference = (props: DifferenceProps) => (
  <Suspense fallback={<pre className="source">{props.after}</pre>}>
    <Merge {...props} />
  </Suspense>
);

/** What the API reports of the text at `pointer` of a body, as findings. */
export function findingsOf(problems: Finding[] | undefined, severity: Finding["severity"], pointer = ""): Finding[] {
  return (problems ?? [])
    .filter((one) => !pointer || !one.pointer || one.pointer === pointer)
    .map((one) => ({ ...one, severity }));
}

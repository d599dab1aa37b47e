// The editor of SQL, schemas and settings. CodeMirror, which it is made of, is loaded when the first one is shown.

import { lazy, Suspense } from "react";
import type { CompletionResult } from "@codemirror/autocomplete";
import type { components } from "./openapi";

export type Language = "sql" | "json" | "avro" | "protobuf" | "variform" | "jq" | "hocon" | "text";

/** A problem as the API reports it. */
export type Finding = components["schemas"]["ProblemEntry"] & { severity?: "error" | "warning" };
export interface Hovered { from: number; to: number; title: string; text?: string }

export interface EditorProps {
  label: string;
  value: string;
  language: Language;
  onChange?: (value: string) => void;
  /** The problems of a text. Asked for after each change, and again when the function is another one. */
  lint?: (text: string, signal: AbortSignal) => Promise<Finding[]>;
  /** What may be written at a place. ``isAsked``: by Ctrl Space, so that nothing need be typed yet. */
  complete?: (text: string, at: number, signal: AbortSignal, isAsked: boolean) => Promise<CompletionResult | null>;
  hover?: (text: string, at: number, signal: AbortSignal) => Promise<Hovered | null>;
  /** Names that are drawn as functions. */
  functions?: string[];
  readOnly?: boolean;
}

export interface DifferenceProps { before: string; after: string; language: Language; titles?: [string, string] }

const CodeMirror = lazy(() => import("./codemirror"));
const Merge = lazy(() => import("./codemirror").then(({ Merge }) => ({ default: Merge })));

export const Editor = (props: EditorProps) => (
  <Suspense fallback={<pre className="source">{props.value}</pre>}><CodeMirror {...props} /></Suspense>
);

/** Two texts, side by side where there is room, else as one with both. */
export const Difference = (props: DifferenceProps) => (
  <Suspense fallback={<pre className="source">{props.after}</pre>}><Merge {...props} /></Suspense>
);

/** What the API reports of the text at `pointer` of a body, as findings. */
export function findingsOf(problems: Finding[] | undefined, severity: Finding["severity"], pointer = ""): Finding[] {
  return (problems ?? []).filter((one) => !pointer || !one.pointer || one.pointer === pointer).map((one) => ({ ...one, severity }));
}

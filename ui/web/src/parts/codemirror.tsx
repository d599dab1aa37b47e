// CodeMirror, as the editor and the difference use it: our colours, our languages, one key for a fix.

import {
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
  type CompletionResult,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { sql, SQLDialect } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { protobuf } from "@codemirror/legacy-modes/mode/protobuf";
import { simpleMode } from "@codemirror/legacy-modes/mode/simple-mode";
import { type Diagnostic, forEachDiagnostic, linter, lintKeymap } from "@codemirror/lint";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension, Prec, type Text } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  hoverTooltip,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { type RefObject, useEffect, useId, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import type { components } from "../api/openapi";
import { State } from "./card";

export type Language = "sql" | "json" | "avro" | "protobuf" | "variform" | "jq" | "hocon" | "text";

/** A problem as the API reports it. */
export type Finding = components["schemas"]["ProblemEntry"] & { severity?: "error" | "warning" };
export interface Hovered {
  from: number;
  to: number;
  title: string;
  text?: string;
}

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

export interface DifferenceProps {
  before: string;
  after: string;
  language: Language;
  titles?: [string, string];
}

const DELAY_MS = 150;
const nonce = document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? "";

const theme = EditorView.theme({
  "&": {
    color: "var(--text)",
    backgroundColor: "var(--surface)",
    border: "1px solid var(--line-strong)",
    borderRadius: "6px",
    fontSize: "13px",
  },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px", maxHeight: "60vh", minHeight: "72px" },
  ".cm-content": { caretColor: "var(--text)", padding: "6px 0" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--muted)", border: "0", borderRadius: "6px" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine, &.cm-focused .cm-activeLineGutter": {
    backgroundColor: "color-mix(in srgb, var(--sunk) 70%, transparent)",
  },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": {
    background: "var(--accent-soft)",
  },
  ".cm-selectionMatch, .cm-searchMatch": { backgroundColor: "var(--accent-soft)" },
  "&.cm-focused .cm-matchingBracket": {
    backgroundColor: "var(--accent-soft)",
    outline: "1px solid var(--line-strong)",
  },
  ".cm-tooltip, .cm-panels": {
    color: "var(--text)",
    backgroundColor: "var(--surface)",
    border: "1px solid var(--line-strong)",
    borderRadius: "6px",
  },
  ".cm-tooltip": { maxWidth: "min(480px, 90vw)" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
  ".cm-tooltip-autocomplete > ul > li": { minHeight: "24px", lineHeight: "20px", padding: "2px 8px !important" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": {
    backgroundColor: "var(--accent-soft) !important",
    color: "var(--text) !important",
  },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "600" },
  ".cm-completionInfo": { fontFamily: "var(--sans)", padding: "8px 12px", whiteSpace: "pre-wrap" },
  ".cm-hovered": { padding: "6px 12px" },
  ".cm-hovered p": { color: "var(--muted)" },
  ".cm-diagnostic": { padding: "6px 12px", borderLeft: "3px solid var(--err)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-diagnosticAction": {
    font: "inherit",
    padding: "1px 8px",
    borderRadius: "6px",
    backgroundColor: "var(--accent)",
    color: "var(--accent-ink)",
  },
  ".cm-lintRange-error, .cm-lintRange-warning": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--err)",
    textUnderlineOffset: "3px",
    textDecorationSkipInk: "none",
  },
  ".cm-lintRange-warning": { textDecorationColor: "var(--warn)" },
  ".cm-changedLine, .cm-insertedLine": {
    backgroundColor: "color-mix(in srgb, var(--ok) 10%, var(--surface)) !important",
  },
  ".cm-deletedChunk, .cm-deletedLine, &.cm-merge-a .cm-changedLine": {
    backgroundColor: "color-mix(in srgb, var(--err) 10%, var(--surface)) !important",
  },
  ".cm-changedText, .cm-insertedLine ins": {
    background: "color-mix(in srgb, var(--ok) 25%, transparent) !important",
    textDecoration: "none",
  },
  ".cm-deletedText, &.cm-merge-a .cm-changedText": {
    background: "color-mix(in srgb, var(--err) 25%, transparent) !important",
  },
  ".cm-deletedLine del": { textDecoration: "none" },
  ".cm-changedText *, .cm-changedText, .cm-insertedLine ins *, .cm-deletedText, .cm-deletedText *": {
    color: "var(--text)",
  },
  ".cm-changeGutter": { width: "3px", paddingLeft: "0" },
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "var(--data-1)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--data-2)" },
  { tag: [tags.standard(tags.name), tags.typeName], color: "var(--data-3)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--info)" },
  { tag: [tags.propertyName, tags.definition(tags.variableName)], color: "var(--data-1)" },
  { tag: tags.comment, color: "var(--muted)" },
]);

const KEYWORDS =
  "select from where as and or not in is null like between escape case when then elsif else end " +
  "foreach do incase if div mod jq";

/** A language that is coloured word by word: comments, strings and numbers are alike in all of them. */
function words(name: string, keywords: string, comment: RegExp) {
  return StreamLanguage.define({
    ...simpleMode({
      start: [
        { regex: comment, token: "comment" },
        { regex: /"""[^]*?"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/, token: "string" },
        { regex: new RegExp(`(?:${keywords.replaceAll(" ", "|")})\\b`), token: "keyword" },
        { regex: /(?:true|false|null|undefined)\b/, token: "atom" },
        { regex: /-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/, token: "number" },
        { regex: /[A-Za-z_][\w]*(?=\s*\()/, token: "builtin" },
        { regex: /[$@.]?[A-Za-z_][\w-]*/, token: "variable" },
      ],
      languageData: { name },
    }),
  });
}

const variform = words("variform", "if", /\/\/.*/);
const jq = words("jq", "def if then elif else end as reduce foreach try catch and or not import include label", /#.*/);
const hocon = words("hocon", "include required", /(?:#|\/\/).*/);

function languageOf(language: Language, functions: string[]): Extension {
  switch (language) {
    case "sql":
      return sql({
        dialect: SQLDialect.define({
          keywords: KEYWORDS,
          builtin: functions.join(" ").toLowerCase(),
          types: "",
          identifierQuotes: '"`',
          doubleDollarQuotedStrings: false,
        }),
      }).language;
    case "json":
    case "avro":
      return json();
    case "protobuf":
      return StreamLanguage.define(protobuf);
    case "variform":
      return variform;
    case "jq":
      return jq;
    case "hocon":
      return hocon;
    default:
      return [];
  }
}

const look = (label: string, readOnly: boolean): Extension => [
  EditorView.cspNonce.of(nonce),
  theme,
  syntaxHighlighting(colours),
  EditorView.lineWrapping,
  EditorState.readOnly.of(readOnly),
  EditorView.contentAttributes.of({
    "aria-label": label,
    tabindex: "0",
    ...(readOnly ? { "aria-readonly": "true" } : {}),
  }),
  drawSelection(),
  lineNumbers(),
];

/** Line and column count from 1 and characters, offsets from 0 and UTF-16. */
function offsetOf(doc: Text, line: number, column: number): number {
  const at = doc.line(Math.min(line, doc.lines));
  return at.from + [...at.text].slice(0, column - 1).join("").length;
}

/** The first such word from an offset on. */
function wordAt(doc: Text, from: number, name: string): [number, number] | undefined {
  const text = doc.sliceString(from);
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const found = new RegExp(`(?<![\\p{L}\\d_])${escaped}(?![\\p{L}\\d_])`, "u").exec(text);
  return found ? [from + found.index, from + found.index + name.length] : undefined;
}

/** Where a finding is: the word at its place, or all of the first line. */
function placed(doc: Text, { line, column, message, severity = "error", suggestion, fix }: Finding): Diagnostic {
  const at = doc.line(Math.min(line ?? 1, doc.lines));
  const start = offsetOf(doc, line ?? 1, column ?? 1);
  const rest = doc.sliceString(start, at.to);
  const length =
    line === undefined
      ? at.length
      : (/^("(?:[^"]|"")*"|'(?:[^']|'')*'|[\p{L}_][\p{L}\d_$@~]*|\S)/u.exec(rest)?.[0].length ?? 0);
  const where = line === undefined ? "" : `line ${line}, column ${column}: `;
  const word = fix && wordAt(doc, offsetOf(doc, fix.line ?? 1, fix.column ?? 1), fix.name);
  const [from, to] = word ?? [start, start + length];
  const actions =
    fix && word
      ? [
          {
            name: `Change to ${fix.by}`,
            apply: (view: EditorView, begin: number, end: number) => replace(view, begin, end, fix.by),
          },
        ]
      : [];
  return { from, to, severity, message: `${where}${message}${suggestion ? `; ${suggestion}` : ""}`, actions };
}

function replace(view: EditorView, from: number, to: number, insert: string) {
  view.dispatch({
    changes: { from, to, insert },
    selection: { anchor: from + insert.length },
    userEvent: "input.fix",
    effects: EditorView.announce.of(`Changed to ${insert}`),
  });
  view.focus();
}

function go(view: EditorView, from: number) {
  view.dispatch({ selection: { anchor: from }, scrollIntoView: true });
  view.focus();
}

/** Ctrl . and Alt Enter: the fix nearest to the cursor. */
function fixNearest(view: EditorView): boolean {
  const at = view.state.selection.main.head;
  let best: { distance: number; apply: () => void } | undefined;
  forEachDiagnostic(view.state, ({ actions }, from, to) => {
    const distance = Math.max(from - at, at - to, 0);
    const fix = actions?.[0];
    if (fix && (!best || distance < best.distance)) best = { distance, apply: () => fix.apply(view, from, to) };
  });
  best?.apply();
  return best !== undefined;
}

/** A function that ends the call before. */
function cancelling<A extends unknown[], T>(ask: (...given: [...A, AbortSignal]) => Promise<T>, otherwise: T) {
  let last = new AbortController();
  return async (...given: A): Promise<T> => {
    last.abort();
    last = new AbortController();
    return ask(...given, last.signal).catch(() => otherwise);
  };
}

function linting(lint: EditorProps["lint"], found: (findings: Diagnostic[]) => void): Extension {
  const problems = lint && cancelling(lint, null);
  return problems
    ? linter(
        async (view) => {
          const findings = await problems(view.state.doc.toString());
          const diagnostics = (findings ?? []).map((one) => placed(view.state.doc, one));
          if (findings) found(diagnostics);
          return diagnostics;
        },
        { delay: DELAY_MS },
      )
    : [];
}

/** Completion and types on hover, by what the page knows at the moment. */
function helping(known: RefObject<EditorProps>): Extension {
  const completions = cancelling(
    async (text: string, at: number, isAsked: boolean, signal: AbortSignal) =>
      known.current.complete?.(text, at, signal, isAsked) ?? null,
    null,
  );
  const hovered = cancelling(
    async (text: string, at: number, signal: AbortSignal) => known.current.hover?.(text, at, signal) ?? null,
    null,
  );
  return [
    autocompletion({
      icons: false,
      activateOnTypingDelay: DELAY_MS,
      override: [(context) => completions(context.state.doc.toString(), context.pos, context.explicit)],
    }),
    hoverTooltip(async (view, at) => {
      const shown = await hovered(view.state.doc.toString(), at);
      if (!shown) return null;
      return { pos: shown.from, end: shown.to, create: () => ({ dom: tooltip(shown.title, shown.text) }) };
    }),
  ];
}

function tooltip(title: string, text: string | undefined): HTMLElement {
  const [dom, head, body] = [
    document.createElement("div"),
    document.createElement("code"),
    document.createElement("p"),
  ];
  dom.className = "cm-hovered";
  head.textContent = title;
  body.textContent = text ?? "";
  dom.append(head, ...(text ? [body] : []));
  return dom;
}

/** Typing over a selection: where the browser does it, it keeps the colours in a style attribute, which the policy of
 *  the page refuses. */
const typingOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { from, to, empty } = view.state.selection.main;
    const text = event.data;
    if (event.inputType !== "insertText" || !text || empty || view.composing || view.state.readOnly) return false;
    const insert = () =>
      view.state.update(view.state.replaceSelection(text), { userEvent: "input.type", scrollIntoView: true });
    if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, text, insert)))
      view.dispatch(insert());
    event.preventDefault();
    return true;
  },
});

const KEYS = keymap.of([
  ...closeBracketsKeymap,
  ...defaultKeymap.filter(({ key }) => key !== "Mod-Enter"),
  ...searchKeymap,
  ...historyKeymap,
  ...completionKeymap,
  ...lintKeymap,
]);

export default function CodeMirror(props: EditorProps) {
  const { label, value, language, lint, complete, functions, readOnly = false } = props;
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const known = useRef(props);
  known.current = props;
  const [findings, setFindings] = useState<Diagnostic[]>([]);
  const [parts] = useState(() => ({
    language: new Compartment(),
    look: new Compartment(),
    linting: new Compartment(),
  }));
  const note = useId();

  useEffect(() => {
    const made = new EditorView({
      parent: place.current ?? undefined,
      state: EditorState.create({
        doc: known.current.value,
        extensions: [
          parts.language.of([]),
          parts.look.of(look(label, readOnly)),
          parts.linting.of([]),
          helping(known),
          history(),
          bracketMatching(),
          closeBrackets(),
          highlightActiveLine(),
          highlightActiveLineGutter(),
          highlightSelectionMatches(),
          search({ top: true }),
          typingOver,
          KEYS,
          Prec.highest(
            keymap.of([
              { key: "Ctrl-.", mac: "Cmd-.", run: fixNearest },
              { key: "Alt-Enter", run: fixNearest },
            ]),
          ),
          EditorView.contentAttributes.of({ "aria-describedby": note }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) known.current.onChange?.(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
  }, [parts, note]); // effects below follow what else changes

  useLayoutEffect(() => {
    // with the render itself: later, it would take back what was typed since
    const made = view.current;
    if (made && made.state.doc.toString() !== value)
      made.dispatch({ changes: { from: 0, to: made.state.doc.length, insert: value } });
  }, [value]);
  useEffect(
    () => view.current?.dispatch({ effects: parts.look.reconfigure(look(label, readOnly)) }),
    [parts, label, readOnly],
  );
  const names = functions?.join(" ");
  useEffect(
    () =>
      view.current?.dispatch({ effects: parts.language.reconfigure(languageOf(language, names?.split(" ") ?? [])) }),
    [parts, language, names],
  );
  useEffect(
    () => view.current?.dispatch({ effects: parts.linting.reconfigure(linting(lint, setFindings)) }),
    [parts, lint],
  );

  return (
    <div className="editor">
      <div ref={place} />
      <p id={note} className="muted small" hidden={!lint && !complete}>
        Tab leaves the editor.
        {complete && (
          <>
            {" "}
            <kbd>Ctrl Space</kbd> completes.
          </>
        )}
        {lint && (
          <>
            {" "}
            <kbd>Ctrl .</kbd> fixes.
          </>
        )}
      </p>
      {lint && <Findings findings={findings} view={view} />}
    </div>
  );
}

/** The problems as text, for those who do not see what is underlined. */
function Findings({ findings, view }: { findings: Diagnostic[]; view: RefObject<EditorView | null> }) {
  /** Acts where the finding is by now: the text may have changed since. */
  const at = (finding: Diagnostic, act: (view: EditorView, from: number, to: number) => void) => {
    const shown = view.current;
    if (shown) forEachDiagnostic(shown.state, (one, from, to) => one === finding && act(shown, from, to));
  };
  return (
    <div role="status" aria-label="Problems">
      <ul className="findings" hidden={!findings.length}>
        {findings.map((finding, key) => (
          <li key={key}>
            <State state={finding.severity === "error" ? "failed" : "degraded"}>{finding.message}</State>
            <button type="button" className="quiet" onClick={() => at(finding, go)}>
              Show
            </button>
            {finding.actions?.map(({ name, apply }) => (
              <button key={name} type="button" onClick={() => at(finding, apply)}>
                {name}
              </button>
            ))}
          </li>
        ))}
      </ul>
    </div>
  );
}

const WIDE = matchMedia("(min-width: 1000px)");
const followWidth = (change: () => void) => {
  WIDE.addEventListener("change", change);
  return () => WIDE.removeEventListener("change", change);
};

export function Merge({ before, after, language, titles = ["Before", "After"] }: DifferenceProps) {
  const place = useRef<HTMLDivElement>(null);
  const isWide = useSyncExternalStore(followWidth, () => WIDE.matches);
  const [left, right] = titles;
  useEffect(() => {
    const parent = place.current;
    if (!parent) return;
    const extensions = (label: string) => [look(label, true), languageOf(language, [])];
    const collapseUnchanged = { margin: 3, minSize: 6 };
    const made = isWide
      ? new MergeView({
          a: { doc: before, extensions: extensions(left) },
          b: { doc: after, extensions: extensions(right) },
          parent,
          collapseUnchanged,
          gutter: true,
        })
      : new EditorView({
          doc: after,
          parent,
          extensions: [
            extensions(`${left} and ${right}`),
            unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged }),
          ],
        });
    return () => made.destroy();
  }, [before, after, language, left, right, isWide]);
  return (
    <div className="difference">
      {isWide && (
        <div className="difference-titles label">
          <p>{left}</p>
          <p>{right}</p>
        </div>
      )}
      {before === after && <p className="empty">There is no difference.</p>}
      <div ref={place} />
    </div>
  );
}

// What is different of the two kinds, and what the parts of their pages share.

import { call, patiently } from "../../api/client";
import { parseJson } from "../../api/json";
import { type Found, type Message, textOf } from "../../api/messages";
import type { components } from "../../api/openapi";
import { count, counted, pretty } from "../../parts/format";

type Schemas = components["schemas"];
export type Step = Schemas["TrialStep"];
export type Stage = Schemas["TopicStage"];
export type Trial = Schemas["PipelineTrial"];
export type Spec = Record<string, unknown>;
export type Gate = Schemas["GateReadOnly"] & {
  name: string;
  topics: string[];
  mode: "enforce" | "shadow";
  failure_action: string;
  quarantine?: string | null;
  enable: boolean;
};

/** What is different of the two kinds. */
export interface Which {
  path: "validations" | "transforms";
  one: "validation" | "transformation";
  member: "validations" | "transformations";
  model: string;
  fresh: Spec;
}

export const BOTH: Which[] = [
  {
    path: "validations",
    one: "validation",
    member: "validations",
    model: "ValidationSpec",
    fresh: {
      name: "",
      topics: [],
      mode: "shadow",
      failure_action: "drop",
      strategy: "all_pass",
      checks: [{ type: "json", schema: "" }],
    },
  },
  {
    path: "transforms",
    one: "transformation",
    member: "transformations",
    model: "TransformationSpec",
    fresh: {
      name: "",
      topics: [],
      mode: "enforce",
      failure_action: "drop",
      payload_decoder: { type: "json" },
      payload_encoder: { type: "json" },
      operations: [{ key: "payload.seen_by", value: "clientid" }],
    },
  },
];

export const preview = (
  body: { message: Message; validations?: Spec[]; transformations?: Spec[] },
  signal?: AbortSignal,
) =>
  patiently(() => call<Trial>("POST", "pipeline:preview", { body, signal }), signal).then(({ body: trial }) => trial);

// One gate: a form, the same as code, and what it does to real messages

/** A message as text to compare: a payload of JSON as JSON. */
export function written(message: {
  topic: string;
  payload?: unknown;
  qos?: number;
  retain?: boolean;
  user_properties?: unknown;
}) {
  const { topic, qos = 0, retain = false, user_properties: user = [] } = message;
  const text = textOf(message);
  let payload: unknown = text;
  try {
    payload = parseJson(text);
  } catch {
    // not JSON: unchanged
  }
  return pretty({
    topic,
    qos,
    retain,
    user_properties: Array.isArray(user) ? user : Object.entries(user as object),
    payload,
  });
}

export const labelOf = ({ at, source, message }: Found) =>
  `${at.slice(11, 19)} ${source} ${message.topic} ${textOf(message).slice(0, 40)}`;

export type Sample = Pick<Found, "message" | "source">;

export const percent = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 2 });
export const share = (failed: number, matched: number) =>
  `${count(failed)} of ${counted(matched, "message")}${matched ? ` (${percent.format(failed / matched)})` : ""}`;

// The state of a bridge and the reason, and what to do about it.

import { Link } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { Button } from "react-aria-components";
import { call, sentence } from "../../api/client";
import { useAlarms } from "../../api/live";
import { useMay } from "../../api/rights";
import { Card, State, stateOf } from "../../parts/card";
import { Command } from "../../parts/copy";
import { Opens } from "../../parts/dialogs";
import { count, counted, duration } from "../../parts/format";
import { useFixed } from "../../parts/read-only";
import { clock, keepTimeZone, useTimeZone } from "../../parts/time";
import { type Action, type Bridge, type Path, placeOf, type Schemas, useServerMs } from "./shared";

/** What to do about a state; nothing where all is well. */
function advice(path: Path, object: Bridge): string {
  const state = stateOf(object as never);
  const isAction = path === "actions";
  const keeps = isAction ? " Rows wait in the buffer until then." : "";
  const isTarget = object.status_reason.startsWith("unhealthy target");
  if (state === "disabled")
    return (
      "It is disabled in its settings. Enable it to use it." +
      (isAction ? " Rows that already wait are kept; new ones are not taken." : "")
    );
  if (state === "stopped")
    return (
      "It stays stopped until it is started or the broker restarts." +
      (isAction ? " Rows that wait are kept; new ones are dropped." : "")
    );
  if (isTarget)
    return (
      `The connection works, the ${isAction ? "target" : "place that is read"} does not: ` +
      `create it, or grant the user of the connector the right to it.${keeps}`
    );
  if (state === "disconnected" && path === "connectors")
    return (
      "It tries again by itself, with longer and longer pauses. Run the test: it shows the step that fails. " +
      "Then correct the settings, or the other system."
    );
  if (state === "disconnected")
    return `It goes on by itself once its connector is connected. Run the test: it shows the step that fails.${keeps}`;
  if (state === "connecting") return `It waits for the other system to answer.${keeps}`;
  if ("paused" in object && object.paused)
    return isAction
      ? "Paused by a person: rows wait in the buffer until it is resumed."
      : "Paused by a person: nothing is read until it is resumed.";
  return "";
}

export function Now({ path, object, children }: { path: Path; object: Bridge; children?: ReactNode }) {
  const nowMs = useServerMs();
  const timeZone = useTimeZone();
  const isFixed = useFixed();
  const may = useMay();
  const mayChange = may(path, "change");
  const { name } = object;
  const state = stateOf(object as never);
  const isPaused = "paused" in object && object.paused;
  const what = advice(path, object);
  const connector = "connector" in object ? object.connector : name;
  const isAway = state === "disconnected" || state === "connecting";
  return (
    <Card
      title="Now"
      note={
        <span title={clock(Date.parse(object.since), timeZone, "full")}>
          {state} for {duration(Math.max(0, Math.floor((nowMs - Date.parse(object.since)) / 1000)))}
        </span>
      }>
      <AlarmsOf path={path} object={object} />
      <p>
        {what ||
          (path === "connectors"
            ? "It is connected, and the other system answers."
            : path === "actions"
              ? "Rows are sent as they arrive."
              : "Records are taken as they arrive.")}
      </p>
      {"attempts" in object && object.attempts > 0 && (
        <p className="muted">
          {counted(object.attempts, "attempt")} to connect failed.{" "}
          {object.next_attempt_at && `The next one is at ${clock(Date.parse(object.next_attempt_at), timeZone)}.`}
        </p>
      )}
      {children}
      <div className="buttons">
        {isAway && may("connectors", "change") && (
          <Do verb="restart" label="Try now" place={placeOf("connectors", connector)} isPrimary />
        )}
        {isAway && (
          <Link
            className="button"
            to="."
            search={((known: object) => ({ ...keepTimeZone(known), tab: "test" })) as never}>
            Run the test
          </Link>
        )}
        {state === "disabled" && (
          <Do verb="enable" label="Enable" place={placeOf(path, name)} isPrimary disabled={isFixed} />
        )}
        {mayChange && state === "stopped" && <Do verb="start" label="Start" place={placeOf(path, name)} isPrimary />}
        {mayChange && state !== "stopped" && state !== "disabled" && (
          <Do verb="stop" label="Stop" place={placeOf(path, name)} />
        )}
        {mayChange && "paused" in object && state !== "disabled" && state !== "stopped" && (
          <Do
            key={String(isPaused)}
            verb={isPaused ? "resume" : "pause"}
            label={isPaused ? "Resume" : "Pause"}
            place={placeOf(path, name)}
            isPrimary={isPaused}
          />
        )}
        {mayChange && path === "actions" && (
          <Opens label="Drain…" title={`Drain ${name}`}>
            {(close) => <Drain action={object as Action} close={close} />}
          </Opens>
        )}
      </div>
    </Card>
  );
}

/** A button that does one thing to an object. */
function Do({
  verb,
  label,
  place,
  isPrimary = false,
  disabled = false,
}: {
  verb: string;
  label: string;
  place: string;
  isPrimary?: boolean;
  disabled?: boolean;
}) {
  const [says, setSays] = useState("");
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    setSays(await call("POST", `${place}:${verb}`).then(() => "", sentence));
    setBusy(false);
  };
  return (
    <>
      <button
        type="button"
        className={isPrimary ? "primary" : ""}
        disabled={disabled || isBusy}
        onClick={() => void press()}>
        {label}
      </button>
      {says && (
        <span role="alert">
          <State state="failed">{says}</State>
        </span>
      )}
    </>
  );
}

function AlarmsOf({ path, object }: { path: Path; object: Bridge }) {
  const { data } = useAlarms();
  const member = path.slice(0, -1);
  const alarms = Object.entries(data ?? {}).filter(([, { details }]) => details[member] === object.id);
  return (
    <div role="status">
      {alarms.map(([name, { message }]) => (
        <p key={name} className="note">
          <State state="alarm">Alarm: {message}</State>
        </p>
      ))}
    </div>
  );
}

const DRAIN_S = 25;

function Drain({ action: { name, metrics }, close }: { action: Action; close: () => void }) {
  const [says, setSays] = useState<ReactNode>(null);
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    try {
      const { body } = await call<Schemas["DrainedAction"]>("POST", `${placeOf("actions", name)}:drain`, {
        body: { timeout_s: DRAIN_S },
      });
      setSays(
        body.drained ? (
          <State state="done">Every row was sent; the action is stopped.</State>
        ) : (
          <State state="degraded">The action is stopped, with {counted(body.left, "row")} left.</State>
        ),
      );
    } catch (error) {
      setSays(<State state="failed">{sentence(error)}</State>);
    }
    setBusy(false);
  };
  return (
    <>
      <h2>Drain {name}?</h2>
      <p>
        It takes no more rows, sends the {count(metrics.queuing + metrics.inflight)} that wait within {DRAIN_S} s, and
        stops.
      </p>
      <Command text={`sluice actions drain ${name} --timeout ${DRAIN_S}`} />
      <div role="status">{isBusy ? "Draining…" : says}</div>
      <div className="buttons">
        {!says && (
          <button type="button" className="primary" disabled={isBusy} onClick={() => void press()}>
            Drain
          </button>
        )}
        <Button className="button" onPress={close}>
          Close
        </Button>
      </div>
    </>
  );
}

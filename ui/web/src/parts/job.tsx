// One job: its progress, its result, and a way to cancel it.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { call, getAny, type Job, sentence } from "../api/client";
import { useJobs } from "../api/live";
import { useMay } from "../api/rights";
import { State } from "./card";
import { count, duration, progressText } from "./format";

const ENDED = new Set(["done", "failed", "cancelled", "interrupted"]);

const PAUSABLE: Record<string, string> = { replay: "replay", "stream-replay": "replay", audit: "audit" };

const hasEnded = (job: { state: string } | undefined) => job !== undefined && ENDED.has(job.state);

/** A job by its identifier: its progress from the live channel, its result once it has ended. */
function useJob(id: string) {
  const jobs = useJobs();
  const live = jobs?.[id];
  const { data, error } = useQuery({
    queryKey: ["job", id, live?.state],
    queryFn: () => getAny<Job>(`jobs/${id}`),
    enabled: jobs !== undefined && (!live || hasEnded(live)),
  });
  return { job: data ?? live, result: hasEnded(data) ? data : undefined, error };
}

/** How far a job is: its state, a bar, its rate and the time that is left, and its error. */
export function JobProgress({ job }: { job: Omit<Job, "result"> }) {
  const { done, total } = job.progress;
  const says = [
    progressText(job.progress),
    job.rate && `${count(job.rate)} a second`,
    job.eta_s && `${duration(job.eta_s)} left`,
  ];
  return (
    <>
      <p role="status">
        <State state={job.state} /> <span className="muted">{says.filter(Boolean).join(", ")}</span>
      </p>
      <progress
        aria-label={`${job.kind} ${job.name}`}
        value={total ? done : hasEnded(job) ? 1 : undefined}
        max={total || 1}
      />
      {job.error && (
        <p className="err" role="alert">
          {job.error}
        </p>
      )}
    </>
  );
}

export function JobView({ id, children }: { id: string; children?: (job: Job) => ReactNode }) {
  const { job, result, error } = useJob(id);
  const [problem, setProblem] = useState("");
  const mayChange = useMay()("jobs", "job");
  const ask = async (verb: "cancel" | "pause" | "resume") => {
    try {
      await call("POST", `jobs/${id}:${verb}`);
    } catch (error) {
      setProblem(sentence(error));
    }
  };
  if (!job) return <p role="status">{error ? sentence(error) : "Starting…"}</p>;
  return (
    <div className="job">
      <JobProgress job={job} />
      {problem && (
        <p className="err" role="alert">
          {problem}
        </p>
      )}
      <div className="buttons" hidden={!mayChange}>
        {PAUSABLE[job.kind] && job.state === "running" && (
          <button type="button" onClick={() => void ask("pause")}>
            Pause the {PAUSABLE[job.kind]}
          </button>
        )}
        {PAUSABLE[job.kind] && (job.state === "paused" || (job.state === "failed" && job.kind === "stream-replay")) && (
          <button type="button" onClick={() => void ask("resume")}>
            Resume the {PAUSABLE[job.kind]}
          </button>
        )}
        {!hasEnded(job) && (
          <button type="button" onClick={() => void ask("cancel")}>
            Cancel
          </button>
        )}
      </div>
      {result?.state === "done" && children?.(result)}
    </div>
  );
}

/** Work that is planned before it is started. The plan holds for the request that it was made for, ``text``; after the
 *  start it is gone. */
export function usePlan<Plan>(text: string, ask: { plan: () => Promise<Plan>; start: () => Promise<void> }) {
  const [plan, setPlan] = useState<{ for: string; plan: Plan } | null>(null);
  const [says, setSays] = useState("");
  const [isBusy, setBusy] = useState(false);
  const doing = async (question: () => Promise<void>) => {
    setSays("");
    setBusy(true);
    await question().catch((error) => setSays(sentence(error)));
    setBusy(false);
  };
  const look = () => void doing(async () => setPlan({ for: text, plan: await ask.plan() }));
  const start = () => void doing(() => ask.start().then(() => setPlan(null)));
  return { planned: plan?.for === text ? plan.plan : null, says, isBusy, look, start };
}

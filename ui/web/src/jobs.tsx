// One job: its progress, its result, and a way to cancel it.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { call, getAny, type Job, sentence } from "./api";
import { count, duration } from "./format";
import { State } from "./parts";

const ENDED = new Set(["done", "failed", "cancelled", "interrupted"]);

const hasEnded = (job: Job | undefined) => job !== undefined && ENDED.has(job.state);

/** A job by its identifier, polled until it has ended. */
function useJob(id: string | null) {
  return useQuery({
    queryKey: ["job", id], queryFn: () => getAny<Job>(`jobs/${id}`), enabled: id !== null,
    refetchInterval: ({ state }) => (hasEnded(state.data) ? false : 500),
  });
}

export function JobView({ id, children }: { id: string; children?: (job: Job) => ReactNode }) {
  const { data: job, error, refetch } = useJob(id);
  const [problem, setProblem] = useState("");
  const cancel = async () => {
    try {
      await call("POST", `jobs/${id}:cancel`);
    } catch (error) {
      setProblem(sentence(error));
    }
    await refetch();
  };
  if (!job) return <p role="status">{error ? sentence(error) : "Starting…"}</p>;
  const { done, total, unit } = job.progress;
  const says = `${count(done)} of ${count(total)} ${unit}${job.rate ? `, ${count(job.rate)} a second` : ""}${job.eta_s ? `, ${duration(job.eta_s)} left` : ""}`;
  return (
    <div className="job">
      <p role="status"><State state={job.state} /> <span className="muted">{says}</span></p>
      <progress aria-label={`${job.kind} ${job.name}`} value={total ? done : hasEnded(job) ? 1 : undefined} max={total || 1} />
      {job.error && <p className="err" role="alert">{job.error}</p>}
      {problem && <p className="err" role="alert">{problem}</p>}
      {!hasEnded(job) && <button type="button" onClick={() => void cancel()}>Cancel</button>}
      {job.state === "done" && children?.(job)}
    </div>
  );
}

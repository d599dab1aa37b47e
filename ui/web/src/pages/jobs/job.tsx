// One job: how far it is as a bar, from the live channel, and its members.

import type { Job } from "../../api/client";
import { useJobs } from "../../api/live";
import { Card } from "../../parts/card";
import type { ItemPageProps } from "../../parts/item-page";
import { JobProgress } from "../../parts/job";
import { Facts } from "../../parts/value";

/** Members that the progress has in words. */
const SHOWN = new Set(["progress", "rate", "eta_s", "error"]);

export default function JobPage({ resource, name, data }: ItemPageProps) {
  const live = useJobs()?.[name];
  const job = { ...data, ...live } as Job;
  const others = Object.fromEntries(Object.entries(job).filter(([member]) => !SHOWN.has(member)));
  return (
    <Card title={resource.one}>
      <div className="job">
        <JobProgress job={job} />
      </div>
      <Facts object={others} label={name} />
    </Card>
  );
}

// What the page of an item of a live list gets that shows more than its members.

import type { Resource } from "../api/kinds";

export type Members = Record<string, unknown>;
export interface ItemPageProps {
  resource: Resource;
  name: string;
  data: Members;
}

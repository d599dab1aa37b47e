// What the address of the page of topics holds.

export interface TopicSearch {
  /** The level whose next levels are listed. */
  under?: string;
  /** The topic that is explained. */
  topic?: string;
  /** The filter of the messages. */
  filter?: string;
  /** The search in the tree. */
  q?: string;
}

export function topicSearch(search: Record<string, unknown>): TopicSearch {
  const members = ["under", "topic", "filter", "q"] as const;
  return Object.fromEntries(members.flatMap((key) => (search[key] === undefined ? [] : [[key, String(search[key])]])));
}

export function Difference({ before, after }: { before: string; after: string; language?: string }) {
  return <><pre className="source">{before}</pre><pre className="source">{after}</pre></>;
}

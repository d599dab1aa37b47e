// The focus of a part of the page whose content changes by itself.

import { type FocusEvent, useEffect, useRef } from "react";

/** Members of a part that gets the focus when what had it goes, as a deleted row does. A dialog over the part borrows
 *  the focus. */
export function useKeptFocus() {
  const place = useRef<HTMLElement>(null);
  const isWithin = useRef(false);
  useEffect(() => {
    // after a closed dialog has given the focus back to what had it
    const frame = requestAnimationFrame(() => {
      if (isWithin.current && document.activeElement === document.body) place.current?.focus({ preventScroll: true });
    });
    return () => cancelAnimationFrame(frame);
  });
  return {
    ref: place,
    tabIndex: -1,
    onFocus: () => {
      isWithin.current = true;
    },
    onBlur: ({ relatedTarget: next }: FocusEvent) => {
      isWithin.current = next instanceof Element && next.closest(".overlay, .popover, [role=dialog]") !== null;
    },
  };
}

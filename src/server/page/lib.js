// Preact and htm (vendored beside this file, with their licenses), as the other files use them. Preact patches what stands on the
// page: focus, scroll positions and open parts stay where they are when something happens. A text is only ever a text node.

import { h, render, Fragment } from "./preact.js";
import htm from "./htm.js";

export { render, Fragment };
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from "./hooks.js";
export const html = htm.bind(h);

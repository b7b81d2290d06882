/** Runs an action before the next frame, once for all calls until then. @param {() => void} action */
export function oncePerFrame(action) {
  let isQueued = false;
  return () => {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(() => {
      isQueued = false;
      action();
    });
  };
}

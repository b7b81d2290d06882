// Types that the page's scripts share. Like contract.d.ts, it is not sent to browsers.

import type {Events} from "./contract.d.ts";

/** News about a run that is being written, and about the connection. */
export type News =
  | {[K in keyof Events]: {kind: K; facts: Events[K]}}[keyof Events]
  | {kind: "open" | "lost"; facts: null};

/** One entry of the list in `screens.js`. */
export interface Entry {
  /** Its name in the address. */
  name: string;
  /** The key that opens it from any screen. */
  key: string;
  title: string;
  load(): Promise<ScreenModule>;
}

export interface ScreenModule {
  mount(place: Place): Screen | Promise<Screen>;
}

/** The run and the element of a screen. */
export interface Place {
  run: string;
  root: HTMLElement;
  /** Aborted when the screen is left. */
  signal: AbortSignal;
  /** Enters the screen again. */
  again(): void;
}

/** The current screen. */
export interface Screen {
  /** Called when the address has changed. */
  update?(now: URLSearchParams): void;
  live?(news: News): void;
  stop?(): void;
  keys?: Key[];
}

export interface Key {
  /** As `KeyboardEvent.key`; "Ctrl+k" with the control (or command) key. */
  key: string;
  label: string;
  does(): void;
}

/** Changes of the address's parameters: null removes one, a list repeats it. */
export type Changes = Record<string, string | number | string[] | null | undefined>;

/** The content of a shared site's file. */
export type Json = null | boolean | number | string | Json[] | Facts;
export type Facts = {[key: string]: Json};

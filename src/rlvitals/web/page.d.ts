// Types that the page's scripts share. As contract.d.ts, no browser is sent it.

import type {Events} from "./contract.d.ts";

/** What the server says of a run that is being written. */
export type News =
  | {[K in keyof Events]: {kind: K; facts: Events[K]}}[keyof Events]
  | {kind: "open" | "lost"; facts: null};

/** One entry of the list in `screens.js`. */
export interface Entry {
  /** As in the address. */
  name: string;
  /** Opens it from everywhere. */
  key: string;
  title: string;
  load(): Promise<ScreenModule>;
}

export interface ScreenModule {
  mount(place: Place): Screen | Promise<Screen>;
}

/** Where a screen is to be. */
export interface Place {
  run: string;
  root: HTMLElement;
  /** Tells that the screen was left. */
  signal: AbortSignal;
  /** Enters the screen anew. */
  again(): void;
}

/** A screen that was entered. */
export interface Screen {
  /** The address has changed. */
  update?(now: URLSearchParams): void;
  live?(news: News): void;
  stop?(): void;
  keys?: Key[];
}

export interface Key {
  /** As `KeyboardEvent.key`; "Ctrl+k" with the control (or command) key. */
  key: string;
  says: string;
  does(): void;
}

/** Settings of the address that become others: null takes one away, a list gives it several times. */
export type Changes = Record<string, string | number | string[] | null | undefined>;

/** What a file of a shared site holds. */
export type Json = null | boolean | number | string | Json[] | Facts;
export type Facts = {[key: string]: Json};

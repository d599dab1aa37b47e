"""SQL rules: the language, its functions, the engine that runs rules on messages and events, and their actions."""

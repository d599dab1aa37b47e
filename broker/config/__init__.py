"""Settings, from text to models: HOCON layers, validation with every problem at once, who set what."""

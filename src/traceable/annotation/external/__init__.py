"""Code that can't be edited: patterns that name it, the import hook, the patcher, the presets."""

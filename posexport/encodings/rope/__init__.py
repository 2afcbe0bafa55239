"""Rotary position embedding (RoPE) and its frequency schedules."""

"""The HTTP server: an OpenAI-compatible proxy, REST under /api, MCP under /mcp, health and metrics."""

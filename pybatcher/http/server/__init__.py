"""The HTTP server: uvicorn with limits on connections and on idle clients."""

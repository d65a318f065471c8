"""How data is split over processes, seeded and moved."""

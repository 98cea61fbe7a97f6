"""The laboratory: whatever measures, the records that it makes, and what the chapters read from them."""

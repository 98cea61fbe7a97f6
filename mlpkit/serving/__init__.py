"""A network behind a service: a queue that makes batches, pictures as MNIST's were made, confidence, and HTTP."""

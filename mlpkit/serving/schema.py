"""What the service takes and returns, in the words of OpenAPI."""

from pydantic import BaseModel

from .inputs import ARRAYS, FORM, JSON, PICTURES

BINARY = {"type": "string", "format": "binary"}
REFUSALS = {
    408: "The body came too slowly.",
    413: "The body, or the picture in it, is too large.",
    415: "A content type that is not taken.",
    422: "What was sent is no image, or too many.",
    429: "Too many requests wait: try again after so many seconds.",
    503: "The service ends: ask another one.",
    504: "There was no prediction before the deadline.",
}


class Likely(BaseModel):
    """A class, and how sure the network is, from 0 to 1, after calibration."""

    name: str
    probability: float


class Prediction(BaseModel):
    """The likeliest classes of an image, best first; as PNGs what the network saw, and where it found its reasons."""

    classes: list[Likely]
    seen: str | None = None
    because: str | None = None


class Predictions(BaseModel):
    """A prediction for each image, in their order."""

    predictions: list[Prediction]


class Problem(BaseModel):
    """Why there is no prediction, and what to do."""

    detail: str | list


class Health(BaseModel):
    """What is served."""

    status: str
    classes: list[str]


def described(service):
    """Return how FastAPI describes POST /classify, which it does not serve."""
    reader = service.reader
    image: dict = {"type": "integer", "minimum": 0, "maximum": 255}
    for size in reversed(reader.shape[reader.shape[0] == 1 :]):
        image = {"type": "array", "minItems": size, "maxItems": size, "items": image}
    images = {"type": "array", "minItems": 1, "maxItems": reader.most, "items": image}
    numbers = {
        "type": "object",
        "required": ["images"],
        "additionalProperties": False,
        "properties": {"images": images},
    }
    pictures = {"type": "array", "items": BINARY, "minItems": 1, "maxItems": reader.most}
    form = {
        "type": "object",
        "required": ["picture"],
        "additionalProperties": False,
        "properties": {"picture": pictures},
    }
    kinds = {JSON: numbers, FORM: form} | dict.fromkeys((ARRAYS, *PICTURES), BINARY)
    content: dict = {kind: {"schema": schema} for kind, schema in kinds.items()}
    content[FORM]["encoding"] = {"picture": {"contentType": ", ".join(PICTURES)}}
    body = {"required": True, "content": content}
    most = {"type": "integer", "minimum": 1, "maximum": len(service.classes), "default": 1}
    query = [
        {"name": "k", "in": "query", "description": "How many classes of each image.", "schema": most},
        {
            "name": "explain",
            "in": "query",
            "description": "Pictures, too.",
            "schema": {"type": "boolean", "default": False},
        },
    ]
    responses: dict = {status: {"model": Problem, "description": what} for status, what in REFUSALS.items()}
    for status in (429, 503):
        responses[status]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return dict(
        response_model=Predictions, responses=responses, summary="Say what images show.", operation_id="classify",
        openapi_extra={"requestBody": body, "parameters": query},
    )  # fmt: skip

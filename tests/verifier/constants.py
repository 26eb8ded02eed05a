"""Labels, codes and limits: docs/spec/constants.md and docs/spec/errors.md, typed in again by hand."""

VERSION = 5
INFERENCE_VERSION = 6
ADAPTATION_VERSION = 7

CONFIGURATION = b"tacit/1 configuration"
MODEL = b"tacit/1 model"
FIXED = b"tacit/1 fixed part"
ROUND = b"tacit/1 round"
ADVERTS = b"tacit/1 adverts"
SHARING = b"tacit/1 sharing"
RING_SEED = b"tacit/1 ring seed"
KEY_SHARE = b"tacit/1 commitment to a share of the mask key"
SEED_SHARE = b"tacit/1 commitment to a share of the self-mask seed"
SEED = b"tacit/1 commitment to the self-mask seed"
SHARE_CHANNEL = b"tacit/1 share encryption"
PAIRWISE_SEED = b"tacit/1 pairwise mask seed"
SELF_SEED = b"tacit/1 self mask seed"
SIGN_ADVERT = b"tacit/1 sign ADVERTISE_KEYS"
SIGN_SHARES = b"tacit/1 sign SHARE_KEYS"
SIGN_COMPLAINT = b"tacit/1 sign complaint in MASKED_INPUT"
SIGN_SURVIVORS = b"tacit/1 sign CONSISTENCY_CHECK"
SIGN_SPENDING = b"tacit/1 sign spending of a privacy budget"
KEY_AGREEMENT = b"tacit/1 group key agreement"
KEY_TRANSCRIPT = b"tacit/1 group key transcript"
CONTRIBUTION = b"tacit/1 commitment to a contribution to the group key"
CONTRIBUTION_CHANNEL = b"tacit/1 contribution encryption"
GROUP_KEY = b"tacit/1 group key"
KEY_CONFIRMATION = b"tacit/1 confirmation of the group key"
GROUP = b"tacit/1 group of clients"
MODEL_KEY = b"tacit/1 key of the model"
INITIAL_MODEL = b"tacit/1 initial model"
COORDINATED_WEIGHTS = b"tacit/1 coordinated binary weights"
SIGN_KEY_COMMIT = b"tacit/1 sign commitment to a contribution"
SIGN_CONTRIBUTION = b"tacit/1 sign contribution to the group key"
SIGN_CONFIRMATION = b"tacit/1 sign confirmation of the group key"
SIGN_ROSTER = b"tacit/1 sign version of a roster"
INFERENCE_TERMS = b"tacit/1 terms of inference"
WEIGHTS = b"tacit/1 commitment to weights"
MATERIAL = b"tacit/1 material"
REQUEST = b"tacit/1 request for randomness"
AUDIT_COMMITMENT = b"tacit/1 commitment to a coin"
AUDIT_COIN = b"tacit/1 coin of an audit"
KEPT = b"tacit/1 kept shares"

PAIRWISE_MASK = b"tacit/1 pairwise mask"
SELF_MASK = b"tacit/1 self mask"
SHARE_COEFFICIENTS = b"tacit/1 share coefficients"
RING_ORDER = b"tacit/1 ring order"
BINARY_WEIGHTS = b"tacit/1 binary weights"

# MODEL_KEY and INITIAL_MODEL are labels of keystreams too.
KEYSTREAM_LABELS = (
    PAIRWISE_MASK,
    SELF_MASK,
    SHARE_COEFFICIENTS,
    RING_ORDER,
    BINARY_WEIGHTS,
    MODEL_KEY,
    INITIAL_MODEL,
)

ENVELOPE_LIMIT = 512
BODY_LIMIT = 2**23
CHUNK_BYTES = 2**20
LARGEST_COHORT = 10000
DETAIL_LIMIT = 300
WINDOW = 4
UPLOADS = 4
HELLOS = 5
HELLO_SECONDS = 10
WORDS_ALIGNED = 16
TRANSFER_LIMIT = 10
TERMS_LIMIT = 2**20
ORDER_LIMIT = 2**18
MOST_IMAGES = 2**20
MOST_ORDERS = 64
LARGEST_PIXELS = 2**14
LARGEST_TOKENS = 2**10
LARGEST_SCORES = 2**24
LARGEST_WEIGHTS = 2**30
LARGEST_WORDS = 2**28

PRIME = 65521
LIMBS = 18
LIMB_BITS = 15
SHARE_BYTES = 36
STATEMENT_BYTES = 72
PACKET_BYTES = 152
METRIC_BITS = 48

CODES = {
    "MALFORMED": 1,
    "VERSION": 2,
    "UNEXPECTED": 3,
    "SESSION": 4,
    "SENDER": 5,
    "SEQUENCE": 6,
    "ROSTER": 7,
    "POLICY": 8,
    "MODEL": 9,
    "KEYS": 11,
    "SIGNATURE": 12,
    "MEMBERS": 13,
    "THRESHOLD": 14,
    "SHARES": 15,
    "VECTOR": 16,
    "SECRET": 17,
    "TIMEOUT": 18,
    "LEFT": 19,
    "LOCAL": 20,
}
NAMES = {number: name for name, number in CODES.items()}
BREAKS_NO_RULE = ("TIMEOUT", "LEFT", "LOCAL")


class Refused(Exception):
    """An input that must not be accepted: with the name of a code, or INVALID where there is none on the wire."""

    def __init__(self, code: str, culprit: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.culprit = culprit


def require(condition: bool, code: str) -> None:
    if not condition:
        raise Refused(code)

//! Signs of the request, the model and the way in between.

use crate::classify::pattern::Family;
use crate::classify::pattern::Pat::{Has, Near, Seq, Seq3, Word};

/// The prompt does not fit.
pub(in crate::classify) const OVERFLOW: Family = Family::new(&[
    Word("input is too long"),
    Word("input too long"),
    Seq("context", "too long"),
    Seq("context", "exceeded"),
    Seq("context", "overflow"),
    Seq("context", "limit"),
    Seq("exceed", "context"),
    Has("context length"),
    Has("context window"),
    Has("maximum context"),
    Has("prompt too large"),
    Has("prompt is too long"),
    Has("too many tokens"),
    Seq("max", "token"),
    Has("token limit"),
    Has("request too large"),
    Has("messages exceed"),
    Has("input length should be"),
    Has("tokens per minute"),
    Word("tpm"),
    Has("max_seq_len"),
    Near("prompt", "exceed", 40),
    Has("超长"),
    Has("上下文长度"),
    Seq("超出", "上下文"),
]);

pub(in crate::classify) const OVERFLOW_WORDS: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "request_too_large",
    "string_above_max_length",
];

/// One request is bigger than a whole minute's allowance.
pub(in crate::classify) const TOO_LARGE_FOR_LIMIT: Family =
    Family::new(&[Has("request too large"), Has("reduce your message size")]);

/// The model or its provider refuses the content.
pub(in crate::classify) const POLICY: Family = Family::new(&[
    Has("content management policy"),
    Has("content policy"),
    Has("usage policies"),
    Has("usage policy"),
    Has("usage guidelines"),
    Has("safety system"),
    Has("input was flagged"),
    Has("content was flagged"),
    Has("prompt was flagged"),
    Has("requires moderation"),
    Has("内容安全"),
    Has("敏感"),
]);

pub(in crate::classify) const POLICY_WORDS: &[&str] = &[
    "content_filter",
    "content_policy_violation",
    "content_policy",
    "cyber_policy",
    "responsibleaipolicyviolation",
    "moderation_blocked",
    "data_inspection_failed",
    "datainspectionfailed",
    "prohibited_content",
    "sensitive_words_detected",
    "base_resp:1026",
    "base_resp:1027",
];

/// The request is not well formed.
pub(in crate::classify) const MALFORMED: Family = Family::new(&[
    Has("improperly formed request"),
    Seq3("invalid", "message", "format"),
    Has("messages must alternate"),
    Has("empty message"),
    Has("empty content"),
    Seq3("function", "name", "blank"),
    Seq3("function", "name", "empty"),
    Seq3("tool", "name", "blank"),
    Seq3("tool", "name", "empty"),
    Near("function name", "missing", 40),
    Near("tool name", "missing", 40),
    Seq("max_tokens", "illegal"),
    Seq("max_tokens", "must be"),
    Seq("max_tokens", "range"),
    Has("parameter is illegal"),
    Seq("is illegal", "range"),
    Has("extra inputs are not permitted"),
    Has("additional inputs are not permitted"),
    Has("extra inputs not permitted"),
    Has("additional properties are not allowed"),
    Has("unknown field"),
    Has("unknown parameter"),
    Has("unrecognized field"),
    Has("unrecognized parameter"),
    Has("unrecognized request argument"),
    Has("unrecognised field"),
    Has("unrecognised parameter"),
    Has("unexpected field"),
    Has("unexpected parameter"),
    Has("invalid field"),
    Has("invalid parameter"),
]);

/// A parameter that this model does not take, whoever serves it.
pub(in crate::classify) const UNSUPPORTED_PARAMETER: Family =
    Family::new(&[Has("unsupported parameter"), Has("unsupported value")]);

pub(in crate::classify) const UNSUPPORTED_PARAMETER_WORDS: &[&str] =
    &["unsupported_parameter", "unsupported_value"];

/// What the model wrote was no valid call or document: the same request may pass.
pub(in crate::classify) const MODEL_OUTPUT_WORDS: &[&str] = &[
    "tool_use_failed",
    "json_validate_failed",
    "malformed_function_call",
];

/// This account may not use this model, or there is no such model.
pub(in crate::classify) const MODEL_ACCESS: Family = Family::new(&[
    Word("invalid model"),
    Seq3("model", "not", "available"),
    Seq3("model", "not", "found"),
    Seq3("model", "not", "supported"),
    Seq3("model", "not", "accessible"),
    Seq("model", "does not exist"),
    Seq("model", "doesn't exist"),
    Near("model", "does not support", 80),
    Near("model", "doesn't support", 80),
    Near("model", "unsupported", 80),
    Has("unsupported model"),
    Has("does not support tools"),
    Has("not supported for this model"),
    Has("not supported by this model"),
    Has("no models loaded"),
    Has("no endpoints found"),
    Has("long context beta"),
    Has("not a valid model"),
    Has("model not exist"),
    Has("模型不存在"),
    Seq3("model", "no longer", "supported"),
    Seq3("model", "no longer", "available"),
    Near("model", "decommissioned", 60),
    Seq3("access", "denied", "model"),
    Seq3("model", "access", "denied"),
    Has("please select a different model"),
    Near("access", "model", 60),
    Near("permission", "model", 60),
    Has("unknown provider for model"),
    Near("must be verified", "model", 60),
    Near("authorized to use", "model", 20),
    Near("model", "disabled", 20),
    Near("model", "requires a newer version", 40),
    Near("model", "requires a subscription", 30),
    Near("model", "your plan", 60),
    Seq3("model", "isn", "supported"),
    Has("model identifier is invalid"),
    Has("no such model"),
    Has("work with the specified model"),
    Seq("tool choice requires", "enable"),
    Has("required for long context"),
    Seq("无权", "模型"),
    Seq("未开放", "权限"),
]);

pub(in crate::classify) const MODEL_ACCESS_WORDS: &[&str] = &[
    "model_not_found",
    "model_not_supported",
    "deployment_not_found",
    "deploymentnotfound",
    "model_decommissioned",
    "not_found_error",
    "key_model_access_denied",
    "team_model_access_denied",
    "user_model_access_denied",
];

/// It is the model that is refused, though the status speaks of the key.
pub(in crate::classify) const MODEL_NOT_SUPPORTED: Family = Family::new(&[
    Near("model", "is not supported", 80),
    Near("model", "disabled", 20),
    Seq("model", "does not exist"),
    Has("allowed to access model"),
    Has("access to model"),
    Has("access to the model"),
    Near("authorized to use", "model", 20),
]);

pub(in crate::classify) const MODEL_NOT_SUPPORTED_WORDS: &[&str] = &[
    "model_not_found",
    "model_not_supported",
    "key_model_access_denied",
    "team_model_access_denied",
    "user_model_access_denied",
];

/// The model can't be brought up, or fell over: the server and its other models are fine.
pub(in crate::classify) const MODEL_DOWN: Family = Family::new(&[
    Seq("model requires more", "memory"),
    Has("runner process has terminated"),
    Has("model runner has unexpectedly stopped"),
    Has("failed to load model"),
    Has("error loading model"),
    Has("unable to load model"),
    Has("model has crashed"),
    Has("model has unloaded"),
]);

/// There is nothing at this address, for any model.
pub(in crate::classify) const WRONG_PATH: Family = Family::new(&[
    Has("invalid url"),
    Has("unknown request url"),
    Has("no route matched"),
    Has("request path not found"),
    Has("404 page not found"),
]);

pub(in crate::classify) const WRONG_PATH_WORDS: &[&str] = &["unknown_url"];

/// The model is gone for good.
pub(in crate::classify) const RETIRED: Family = Family::new(&[
    Has("no longer available"),
    Has("no longer supported"),
    Has("has reached its end of life"),
    Has("has reached the end of life"),
    Near("model", "deprecated", 40),
    Near("model", "retired", 40),
    Near("model", "discontinued", 40),
    Near("model", "decommissioned", 40),
]);

/// The base URL is out of date.
pub(in crate::classify) const MOVED: Family = Family::new(&[
    Has("endpoint has moved"),
    Has("no longer works"),
    Has("update your base url"),
]);

/// NVIDIA's word for a function that is down.
pub(in crate::classify) const DEGRADED: Family = Family::new(&[Near("function", "degraded", 80)]);

/// Things that requests name and that may be missing.
pub(in crate::classify) const RESOURCES: &[&str] = &[
    "file",
    "files",
    "input file",
    "file id",
    "item",
    "response",
    "vector store",
    "upload",
    "conversation",
    "prompt",
    "container",
    "assistant",
    "thread",
    "batch",
];

pub(in crate::classify) const MISSING: &[&str] =
    &["not found", "does not exist", "no such", "may not exist"];

pub(in crate::classify) const RESOURCE_GAP: usize = 160;

/// A gateway that quotes the refusals of others.
pub(in crate::classify) const QUOTED_STATUS: Family = Family::new(&[
    Has("status code: 4"),
    Has("status code 4"),
    Seq3("all", "failed", "error"),
]);

/// Ended by ourselves or by the client.
pub(in crate::classify) const LOCAL_LIFECYCLE: Family = Family::new(&[
    Has("controller is already closed"),
    Has("request_signal_aborted"),
    Has("client disconnected"),
    Has("operation was aborted"),
]);

/// Codes and types of failures that belong to the request, not to the provider.
pub(in crate::classify) const NOT_BREAKER_WORDS: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "upstream_empty_response",
    "upstream_response_failed",
    "combo_target_timeout",
    "rate_limit_queue_timeout",
    "rate_limit_queue_full",
    "rate_limit_queue_wedged",
    "token_limit_exceeded",
    "resource_pressure",
    "heap_pressure",
    "invalid_request_error",
    "local_queue_capacity",
    "freetiererror",
    "stream_readiness_timeout",
    "enoent",
    "eacces",
    "epipe",
    "err_child_process_stdio_maxbuffer",
];

/// It is a model that is missing.
pub(in crate::classify) const MODEL_WORD: Family = Family::new(&[Word("model"), Word("models")]);

/// Something that a request may name is missing.
pub(in crate::classify) const NOT_THERE: Family =
    Family::new(&[Has("not found"), Has("does not exist"), Has("no such")]);

/// The account may not see it, or it is not there.
pub(in crate::classify) const MAY_NOT_EXIST: Family = Family::new(&[Has("may not exist")]);

/// The account has to be verified first.
pub(in crate::classify) const UNVERIFIED: Family = Family::new(&[Has("must be verified")]);

/// The conversation lives on another account.
pub(in crate::classify) const FOREIGN_BINDING: Family =
    Family::new(&[Has("previous_response_id does not belong")]);

pub(in crate::classify) const IMPROPER: Family = Family::new(&[Has("improperly formed request")]);

/// About the answers, not about a function.
pub(in crate::classify) const DEGRADED_MODEL: Family = Family::new(&[Has("degraded model")]);

/// Every family of this file.
pub(super) const REQUEST: &[Family] = &[
    OVERFLOW,
    TOO_LARGE_FOR_LIMIT,
    POLICY,
    MALFORMED,
    UNSUPPORTED_PARAMETER,
    MODEL_ACCESS,
    MODEL_NOT_SUPPORTED,
    MODEL_DOWN,
    WRONG_PATH,
    RETIRED,
    MOVED,
    DEGRADED,
    QUOTED_STATUS,
    LOCAL_LIFECYCLE,
    MODEL_WORD,
    NOT_THERE,
    MAY_NOT_EXIST,
    UNVERIFIED,
    FOREIGN_BINDING,
    IMPROPER,
    DEGRADED_MODEL,
];

"""What each family's template must make of three conversations, written by hand.

What the assistant must produce stands between ⟦ and ⟧; the policy learns exactly that.
"""

from posttrain.types import Message

SINGLE = (Message("user", "2+2?"), Message("assistant", "4"))
TWO = (*SINGLE, Message("user", "And 3 more?"), Message("assistant", "7"))
SYSTEM = (Message("system", "Be brief."), *TWO)

SMOL = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QWEN = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
CHATML_SINGLE = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦4<|im_end|>⟧"
CHATML_TWO = CHATML_SINGLE + "\n<|im_start|>user\nAnd 3 more?<|im_end|>\n<|im_start|>assistant\n⟦7<|im_end|>⟧"
CHATML_SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
LLAMA_TWO = (
    "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦4<|eot_id|>⟧"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd 3 more?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦7<|eot_id|>⟧"
)
GEMMA_TURN_2 = "\n<start_of_turn>user\nAnd 3 more?<end_of_turn>\n<start_of_turn>model\n⟦7<end_of_turn>⟧"
GEMMA_SINGLE = "<bos><start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n⟦4<end_of_turn>⟧"
PHI_TWO = "<|user|>\n2+2?<|end|>\n<|assistant|>\n⟦4<|end|>⟧\n<|user|>\nAnd 3 more?<|end|>\n<|assistant|>\n⟦7<|end|>⟧"

# family -> single turn, two turns, two turns with a system message; None where the template refuses or rewrites
VECTORS: dict[str, tuple[str, str | None, str | None]] = {
    "smollm2": (SMOL + CHATML_SINGLE, SMOL + CHATML_TWO, CHATML_SYSTEM + CHATML_TWO),
    "qwen2.5": (QWEN + CHATML_SINGLE, QWEN + CHATML_TWO, CHATML_SYSTEM + CHATML_TWO),
    "qwen3": (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\n4<|im_end|>⟧",
        None,  # produced with a thinking block, shown without it once the next question is there
        None,
    ),
    "smollm3": tuple(
        f"<|im_start|>system\n{system}<|im_end|>\n{rest}"
        for system, rest in (
            ("You are SmolLM.", CHATML_SINGLE),
            ("You are SmolLM.", CHATML_TWO),
            ("Be brief.", CHATML_TWO),
        )
    ),
    "hermes": (CHATML_SINGLE, CHATML_TWO, CHATML_SYSTEM + CHATML_TWO),
    "llama3": (
        "<|begin_of_text|>" + LLAMA_TWO[: LLAMA_TWO.index("⟧") + 1],
        "<|begin_of_text|>" + LLAMA_TWO,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>" + LLAMA_TWO,
    ),
    "gemma2": (GEMMA_SINGLE, GEMMA_SINGLE + GEMMA_TURN_2, None),  # there is no system role
    "gemma3": (
        GEMMA_SINGLE,
        GEMMA_SINGLE + GEMMA_TURN_2,
        "<bos><start_of_turn>user\nBe brief.\n\n2+2?<end_of_turn>\n<start_of_turn>model\n⟦4<end_of_turn>⟧"
        + GEMMA_TURN_2,
    ),
    "mistral": (
        "<s> [INST] 2+2? [/INST]⟦ 4</s>⟧",
        "<s> [INST] 2+2? [/INST]⟦ 4</s>⟧ [INST] And 3 more? [/INST]⟦ 7</s>⟧",
        "<s> [INST] Be brief.\n\n2+2? [/INST]⟦ 4</s>⟧ [INST] And 3 more? [/INST]⟦ 7</s>⟧",
    ),
    "mistral-v3": (
        "<s>[INST] 2+2?[/INST]⟦ 4</s>⟧",
        "<s>[INST] 2+2?[/INST]⟦ 4</s>⟧[INST] And 3 more?[/INST]⟦ 7</s>⟧",
        None,  # the system message moves from the first question to the second
    ),
    "phi3": (PHI_TWO[: PHI_TWO.index("⟧") + 1], PHI_TWO, "<|system|>\nBe brief.<|end|>\n" + PHI_TWO),
}

# The last turn can be trained everywhere: behind what the template shows when that turn is asked for.
LAST: dict[tuple[str, bool], str] = {
    ("qwen3", False): (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nAnd 3 more?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\n7<|im_end|>⟧"
    ),
    ("mistral-v3", True): "<s>[INST] 2+2?[/INST] 4</s>[INST] Be brief.\n\nAnd 3 more?[/INST]⟦ 7</s>⟧",
    ("phi3", False): (
        "<|user|>\n2+2?<|end|>\n<|assistant|>\n4<|end|>\n<|user|>\nAnd 3 more?<|end|>\n<|assistant|>\n⟦7<|end|>⟧"
    ),
}

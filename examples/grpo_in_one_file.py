"""GRPO in one file: a model made from scratch learns to sort letters, first by imitation, then from nothing but a reward.

    python examples/grpo_in_one_file.py        # two minutes on a CPU

What cascade-rl does in its rooms (a sampler with a cache, packing, a proof of on-policyness, exact resume) is left out; what is here
is the algorithm itself, as in Eq. 1 of arXiv 2603.19220, and a test holds it to the product's own step: same rollouts, same loss,
same gradient, same weights after the update.

A step, strictly on-policy:

    1. draw prompts, and for each prompt sample a group of answers from the model as it is now;
    2. give each answer a reward: here 1 for sorted letters, 0 for anything else;
    3. an answer's advantage is how much better it was than its group: (reward - mean) / std. A group of equal rewards says nothing;
    4. make every sampled token of an answer more likely, in proportion to the answer's advantage; one update; back to 1.
"""

import time

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

# Tokens: padding, "=" (asks for the answer), "." (ends it), and the letters. A prompt is five letters and "=", an answer "abcde.".
LETTERS = "abcdefgh"
PAD, ASK, END = 0, 1, 2
PROMPT_TOKENS, ANSWER_TOKENS = 6, 7  # an answer may have one token more than it needs

# Shapes: P prompts of a step, G answers a prompt, B = P x G sequences, T tokens of a sequence, A tokens of an answer.


def make_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=3 + len(LETTERS), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32, pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def draw_prompts(num: int, generator: torch.Generator) -> Tensor:
    """[num, 6]: five different letters in random order, then "="."""
    letters = torch.stack([torch.randperm(len(LETTERS), generator=generator)[:5] for _ in range(num)]) + 3
    return torch.cat([letters, torch.full((num, 1), ASK)], dim=1)


def right_answers(prompts_PT: Tensor) -> Tensor:
    """[P, 6]: the letters in order, then "."."""
    return torch.cat([prompts_PT[:, :5].sort(dim=1).values, torch.full((len(prompts_PT), 1), END)], dim=1)


@torch.no_grad()
def sample(model: LlamaForCausalLM, prompts_PT: Tensor, group_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(ids [B, T], mask [B, T]): group_size answers to each prompt, side by side; the mask is true on sampled tokens, "." included.

    The whole sequence goes through the model for every token: ten tokens need no cache. Temperature 1, the whole vocabulary.
    """
    ids_BT = prompts_PT.repeat_interleave(group_size, dim=0)
    mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    alive_B = torch.ones(len(ids_BT), dtype=torch.bool)
    for _ in range(ANSWER_TOKENS):
        probs_BV = model(ids_BT).logits[:, -1].softmax(-1)
        next_B = torch.multinomial(probs_BV, 1, generator=generator)[:, 0]
        ids_BT = torch.cat([ids_BT, torch.where(alive_B, next_B, PAD)[:, None]], dim=1)
        mask_BT = torch.cat([mask_BT, alive_B[:, None]], dim=1)
        alive_B = alive_B & (next_B != END)
    return ids_BT, mask_BT


def rewards(ids_BT: Tensor, group_size: int) -> Tensor:
    """[P, G]: 1 for the right answer, to the end of it and with nothing after; else 0."""
    right_BA = right_answers(ids_BT[:, :PROMPT_TOKENS])
    answer_BA = ids_BT[:, PROMPT_TOKENS : PROMPT_TOKENS + right_BA.shape[1]]
    return (answer_BA == right_BA).all(dim=1).float().view(-1, group_size)


def advantages(rewards_PG: Tensor) -> tuple[Tensor, Tensor]:
    """(advantage [P, G], trains [P, G]): each reward against its own group; a group whose rewards are all alike does not train."""
    mean_P1, std_P1 = rewards_PG.mean(1, keepdim=True), rewards_PG.std(1, keepdim=True, correction=0)
    trains_P1 = rewards_PG.amax(1, keepdim=True) - rewards_PG.amin(1, keepdim=True) > 1e-6
    advantage_PG = torch.where(trains_P1, (rewards_PG - mean_P1) / std_P1, 0.0)
    return advantage_PG, trains_P1.expand_as(rewards_PG)


def logps(model: LlamaForCausalLM, ids_BT: Tensor) -> Tensor:
    """[B, T]: the log-prob of each token given those before it; 0 for the first, which nothing predicts.

    Padding stands at the end, so no token that counts ever looks at it.
    """
    logp_BTV = model(ids_BT[:, :-1]).logits.log_softmax(-1)
    told_BT = logp_BTV.gather(2, ids_BT[:, 1:, None])[:, :, 0]
    return torch.cat([torch.zeros(len(ids_BT), 1), told_BT], dim=1)


def grpo_loss(model: LlamaForCausalLM, ids_BT: Tensor, mask_BT: Tensor, advantage_B: Tensor, trains_B: Tensor) -> Tensor:
    """Minus the mean of ratio x advantage over all sampled tokens of the step: long answers weigh more, as in the paper.

    The ratio pi / pi_old is 1, since there is one update for each batch of answers; its gradient is that of log pi, so this is
    REINFORCE: - mean of advantage x grad log pi.
    """
    logp_BT = logps(model, ids_BT)
    ratio_BT = torch.exp(logp_BT - logp_BT.detach())
    counts_BT = mask_BT & trains_B[:, None]
    return -(ratio_BT * advantage_B[:, None] * counts_BT).sum() / counts_BT.sum().clamp(min=1)


def grpo_step(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, ids_BT: Tensor, mask_BT: Tensor, rewards_PG: Tensor
) -> float:
    """One update on graded answers; gives the loss. A step without any signal changes nothing."""
    advantage_PG, trains_PG = advantages(rewards_PG)
    if not trains_PG.any():
        return 0.0
    loss = grpo_loss(model, ids_BT, mask_BT, advantage_PG.flatten(), trains_PG.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def imitate(model: LlamaForCausalLM, steps: int, generator: torch.Generator) -> None:
    """Supervised fine-tuning on right answers, stopped early: RL can only make likelier what is sampled now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        prompts_PT = draw_prompts(64, generator)
        ids_BT = torch.cat([prompts_PT, right_answers(prompts_PT)], dim=1)
        loss = -logps(model, ids_BT)[:, PROMPT_TOKENS:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(imitation_steps: int = 60, steps: int = 150, num_prompts: int = 32, group_size: int = 8, seed: int = 0) -> list[float]:
    """Trains; gives the share of right answers of each step."""
    torch.manual_seed(seed)
    generator, begin = torch.Generator().manual_seed(seed), time.perf_counter()
    model = make_model()
    imitate(model, imitation_steps, generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
    told = []
    for step in range(1, steps + 1):
        ids_BT, mask_BT = sample(model, draw_prompts(num_prompts, generator), group_size, generator)
        rewards_PG = rewards(ids_BT, group_size)
        told.append(rewards_PG.mean().item())
        mixed = (rewards_PG.amax(1) > rewards_PG.amin(1)).float().mean().item()
        grpo_step(model, optimizer, ids_BT, mask_BT, rewards_PG)
        if step == 1 or step % 10 == 0:
            recent = told[-10:]
            spent = time.perf_counter() - begin
            print(f"step {step:3d}   right {sum(recent) / len(recent):5.1%}   groups with signal {mixed:4.0%}   {spent:4.0f} s")
    return told


if __name__ == "__main__":
    main()

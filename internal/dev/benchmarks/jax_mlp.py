"""The MLP of BenchmarkModel in JAX: a compiled step with Adam, in float32."""
import functools

import jax
import jax.numpy as jnp

jax.config.update("jax_default_matmul_precision", "highest")


def loss(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1))


@functools.partial(jax.jit, donate_argnums=0)
def step(state, x, y):
    params, mean, square, t = state
    grads, t = jax.grad(loss)(params, x, y), t + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, grads)
    params = jax.tree.map(
        lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), params, mean, square)
    return params, mean, square, t


def stepper(batch):
    """A function that queues n steps on a batch and waits for them."""
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = [(784, 512), (512, 512), (512, 10)]
    params = [(0.03 * jax.random.normal(k, s), jnp.zeros(s[1])) for k, s in zip(keys, sizes)]
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [(params, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0))]
    x, y = jax.random.uniform(keys[3], (batch, 784)), jnp.zeros(batch, jnp.int32)

    def run(n):
        for _ in range(n):
            state[0] = step(state[0], x, y)
        jax.block_until_ready(state[0])
    return run

"""The commands for a terminal: configuration in, one command out."""

from headrace.config_commands import ChatConfig, DrainConfig, ExplainConfig, HealthConfig, ModelsConfig, StatusConfig
from headrace.terminal import chat, drain, explain, health, models, status


def run_chat(config: ChatConfig) -> int:
    key = config.api_key.get_secret_value()
    return chat.talk(
        chat.ChatOptions(config.url, key, config.message, config.model, config.temperature, config.max_tokens)
    )


def run_status(config: StatusConfig) -> int:
    return status.show(status.StatusOptions(config.url, config.key, config.json_output))


def run_explain(config: ExplainConfig) -> int:
    return explain.show(explain.ExplainOptions(config.url, config.key, config.request, config.json_output))


def run_drain(config: DrainConfig) -> int:
    return drain.drain(drain.DrainOptions(config.url, config.key, config.worker, config.grace_s, config.timeout_s))


def run_health(config: HealthConfig) -> int:
    return health.ask(health.HealthOptions(config.address, config.timeout_s))


def run_models(config: ModelsConfig) -> int:
    cache_dir = config.cache_dir.expanduser()
    return models.show(models.ModelsOptions(config.checkpoint, cache_dir, config.json_output))

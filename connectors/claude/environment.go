package claude

import (
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Variables of the program.
const (
	configEnv = "CLAUDE_CONFIG_DIR"
	// loginEnv puts the login elsewhere than the configuration. The program replaces the file at a refresh of the
	// token, so that a link in the seat's directory would become a copy, and the user's token the old one: the
	// provider takes each refresh token once.
	loginEnv = "CLAUDE_SECURESTORAGE_CONFIG_DIR"
	apiKey   = "ANTHROPIC_API_KEY"
)

// envAllow are the host's variables that a seat gets: how to reach a model, from behind a proxy or a private
// certificate authority too, where the user's configuration is, and what he has said about telemetry. The
// regions of single models (VERTEX_REGION_CLAUDE_*) are those that the tested version reads.
var envAllow = sdk.AndNetworkEnv(
	"CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_OAUTH_REFRESH_TOKEN", "CLAUDE_CODE_OAUTH_SCOPES",
	apiKey, "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", configEnv, loginEnv,
	"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_ANTHROPIC_AWS", "CLAUDE_CODE_USE_MANTLE",
	"ANTHROPIC_AWS_API_KEY", "ANTHROPIC_AWS_BASE_URL", "ANTHROPIC_AWS_WORKSPACE_ID",
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
	"AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_BEARER_TOKEN_BEDROCK",
	"ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "ANTHROPIC_BEDROCK_REGION_PREFIX", "ANTHROPIC_BEDROCK_SERVICE_TIER",
	"ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION", "ANTHROPIC_VERTEX_BASE_URL", "ANTHROPIC_VERTEX_PROJECT_ID",
	"GOOGLE_APPLICATION_CREDENTIALS", "CLOUD_ML_REGION", "GCLOUD_PROJECT", "GOOGLE_CLOUD_PROJECT",
	"VERTEX_REGION_CLAUDE_3_5_HAIKU", "VERTEX_REGION_CLAUDE_3_5_SONNET", "VERTEX_REGION_CLAUDE_3_7_SONNET", "VERTEX_REGION_CLAUDE_4_0_OPUS",
	"VERTEX_REGION_CLAUDE_4_0_SONNET", "VERTEX_REGION_CLAUDE_4_1_OPUS", "VERTEX_REGION_CLAUDE_4_5_OPUS", "VERTEX_REGION_CLAUDE_4_5_SONNET",
	"VERTEX_REGION_CLAUDE_4_6_OPUS", "VERTEX_REGION_CLAUDE_4_6_SONNET", "VERTEX_REGION_CLAUDE_4_7_OPUS", "VERTEX_REGION_CLAUDE_4_8_OPUS",
	"VERTEX_REGION_CLAUDE_5_OPUS", "VERTEX_REGION_CLAUDE_5_SONNET", "VERTEX_REGION_CLAUDE_5_5_OPUS", "VERTEX_REGION_CLAUDE_5_5_SONNET",
	"VERTEX_REGION_CLAUDE_FABLE_5", "VERTEX_REGION_CLAUDE_FABLE_5_1", "VERTEX_REGION_CLAUDE_FABLE_5_2", "VERTEX_REGION_CLAUDE_HAIKU_4_5",
	"VERTEX_REGION_CLAUDE_HAIKU_5_5",
	"ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_AUTH_TOKEN", "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_RESOURCE",
	"ANTHROPIC_PROFILE", "ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID", "ANTHROPIC_WORKSPACE_ID",
	"ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_IDENTITY_TOKEN_FILE",
	"DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "IS_SANDBOX",
)

// environment is the complete environment of the seat.
func (l launch) environment() []string {
	env := l.req.Environment(
		"DISABLE_AUTOUPDATER=1", // a seat runs what was checked
		"CLAUDE_CODE_TMPDIR="+l.path(tmpDir),
	)
	if home := l.home(); home != "" {
		env = sdk.SetEnv(env, configEnv+"="+home)
		if login := loginDir(l.req.BaseEnv); login != "" {
			env = sdk.SetEnv(env, loginEnv+"="+login)
		}
	}
	return env
}

// userDir is the user's configuration directory, as the program finds it; "" where nothing says it.
func userDir(env []string) string {
	if dir := sdk.Getenv(env, configEnv); dir != "" {
		return dir
	}
	if home := sdk.Getenv(env, "HOME"); home != "" {
		return filepath.Join(home, ".claude")
	}
	return ""
}

// loginDir is where the user's login is.
func loginDir(env []string) string {
	if dir := sdk.Getenv(env, loginEnv); dir != "" {
		return dir
	}
	return userDir(env)
}

// userFile is the user's .claude.json: in his configuration directory when a variable names that, else in his home.
func userFile(env []string) string {
	if dir := sdk.Getenv(env, configEnv); dir != "" {
		return filepath.Join(dir, configFile)
	}
	if home := sdk.Getenv(env, "HOME"); home != "" {
		return filepath.Join(home, configFile)
	}
	return ""
}

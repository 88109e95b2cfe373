package codex_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// jwt is a token of the shape that the program reads; nobody checks its signature but who made it.
func jwt(t *testing.T, expires time.Time) string {
	t.Helper()
	part := func(v any) string {
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(p)
	}
	return part(map[string]any{"alg": "none", "typ": "JWT"}) + "." + part(map[string]any{
		"exp": expires.Unix(), "email": "user@example.org",
		"https://api.openai.com/auth": map[string]any{"chatgpt_account_id": "account", "chatgpt_plan_type": "plus", "chatgpt_user_id": "user"},
	}) + "." + base64.RawURLEncoding.EncodeToString([]byte("signature"))
}

// The login of a seat is a link to the operator's. A token that has run out is renewed with one that can be used once:
// if the new one did not reach the operator's file, he would be logged out by his seats.
func TestRealCodexRenewsALoginThroughTheLink(t *testing.T) {
	binary := agents.Need(t, agents.Codex)
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	fresh := jwt(t, time.Now().Add(time.Hour))
	var renewed atomic.Int32
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "refresh-old") {
			renewed.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id_token":%q,"access_token":%q,"refresh_token":"refresh-new"}`, fresh, fresh)
	}))
	t.Cleanup(issuer.Close)
	operator, home := t.TempDir(), t.TempDir()
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := jwt(t, time.Now().Add(-time.Hour))
	put(operator, "auth.json", fmt.Sprintf(`{"auth_mode":"chatgpt","OPENAI_API_KEY":null,"tokens":{"id_token":%q,"access_token":%q,"refresh_token":"refresh-old","account_id":"account"},"last_refresh":"2026-01-01T00:00:00Z"}`, old, old))
	put(home, "config.toml", fmt.Sprintf(`model = "stub-model"
model_provider = "stub"
chatgpt_base_url = %q
check_for_update_on_startup = false
[model_providers.stub]
name = "Stub"
base_url = %q
wire_api = "responses"
requires_openai_auth = true
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
`, issuer.URL, stub.BaseURL()))
	link := filepath.Join(home, "auth.json")
	if err := os.Symlink(filepath.Join(operator, "auth.json"), link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "exec", "--skip-git-repo-check", "hello")
	cmd.Dir, cmd.WaitDelay = t.TempDir(), time.Second
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "CODEX_HOME=" + home, "CODEX_REFRESH_TOKEN_URL_OVERRIDE=" + issuer.URL + "/oauth/token"}
	out, err := cmd.CombinedOutput()
	if err != nil || renewed.Load() == 0 {
		t.Fatalf("the program did not renew its login (%v, %d renewals):\n%s", err, renewed.Load(), out)
	}
	if got, err := os.ReadFile(filepath.Join(operator, "auth.json")); err != nil || !strings.Contains(string(got), "refresh-new") {
		t.Errorf("the operator's login is %s, %v; want the renewed one", got, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link of the seat is %v, %v; want it to be one still", info, err)
	}
}

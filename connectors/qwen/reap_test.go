package qwen

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// The program renews its login by a file in place of the link: the new one went with the seat, and the user was left
// with one that his provider may have taken back.
func TestALoginThatWasRenewedInASeatWentWithTheSeat(t *testing.T) {
	const users, renewed = `{"refresh_token":"old"}`, `{"refresh_token":"new"}`
	for name, c := range map[string]struct {
		seat func(t *testing.T, mine, seats string)
		want string
	}{
		"one that was renewed is the user's": {func(*testing.T, string, string) {}, renewed},
		"one that the user renewed later stays": {func(t *testing.T, mine, _ string) {
			later := time.Now().Add(time.Hour)
			if err := os.Chtimes(mine, later, later); err != nil {
				t.Fatal(err)
			}
		}, users},
		"one that was not renewed is the user's own": {func(t *testing.T, mine, seats string) {
			if err := os.Remove(seats); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(mine, seats); err != nil {
				t.Fatal(err)
			}
		}, users},
		"half of one is none": {func(t *testing.T, _, seats string) { put(t, seats, renewed[:9]) }, users},
		"one that the user removed does not come back": {func(t *testing.T, mine, _ string) {
			if err := os.Remove(mine); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			user, dir := t.TempDir(), t.TempDir()
			mine, seats := filepath.Join(user, loginFile), filepath.Join(dir, homeDir, loginFile)
			put(t, mine, users)
			before := time.Now().Add(-time.Hour)
			if err := os.Chtimes(mine, before, before); err != nil {
				t.Fatal(err)
			}
			h := home{req: sdk.LaunchRequest{Dir: dir}, user: user, settings: map[string]any{}, servers: map[string]server{}}
			if err := h.furnish(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(seats); err != nil { // as the program does: another file in the place of the link
				t.Fatal(err)
			}
			put(t, seats, renewed)
			c.seat(t, mine, seats)
			if _, err := (&Connector{}).Reap(t.Context(), sdk.LeftoverRequest{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(mine); string(got) != c.want {
				t.Errorf("the user's login is %q, want %q", got, c.want)
			}
			if st, err := os.Stat(mine); err == nil && st.Mode().Perm() != 0o600 {
				t.Errorf("it has the mode %v", st.Mode())
			}
		})
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

//go:build linux

package attach

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A seat that floods hands over more at once than a frame may hold, also of what makes no terminal answer any more.
func TestOutputFromBeforeAViewerIsNoLargerThanAFrame(t *testing.T) {
	text := bytes.Repeat([]byte("a line of output\r\n"), 20000) // 360 kB
	for _, own := range []int{0, 1, wire.MaxSessionData - 1, wire.MaxSessionData, wire.MaxSessionData + 1, len(text) / 2, len(text), 2 * len(text)} {
		t.Run(fmt.Sprintf("%d bytes of %d", own, len(text)), func(t *testing.T) {
			var got []byte
			v := &view{own: uint64(own), next: uint64(len(text))}
			v.out = func(p []byte) error {
				if len(p) > wire.MaxSessionData {
					t.Errorf("%d bytes at once", len(p))
				}
				got = append(got, p...)
				return nil
			}
			v.batch = append(v.batch, "what was gathered before"...)
			if err := v.show(text); err != nil {
				t.Fatal(err)
			}
			if err := v.flush(); err != nil {
				t.Fatal(err)
			}
			if want := "what was gathered before" + string(text); string(got) != want {
				t.Errorf("%d bytes came of %d", len(got), len(want))
			}
		})
	}
}

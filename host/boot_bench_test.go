package host

import (
	"testing"
)

// BenchmarkBoot is from nothing, or from what the host before left, to a host that answers, without its plugins: a
// runtime's process starts beside all of it.
func BenchmarkBoot(b *testing.B) {
	for name, open := range map[string]bool{"authenticated": false, "open": true} {
		b.Run("nothing/"+name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := begin(b, Config{Root: b.TempDir(), Open: open})
				b.StartTimer()
				if err := s.run(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.stop(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		b.Run("again/"+name, func(b *testing.B) {
			root := b.TempDir()
			if err := serve(b, Config{Root: root, Open: open}).stop(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				s := begin(b, Config{Root: root, Open: open})
				b.StartTimer()
				if err := s.run(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.stop(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

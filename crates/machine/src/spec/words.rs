//! Words of which there are only some, as libvirt spells them.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$on:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$on])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// What a feature of the CPU has to be.
    CpuPolicy {
        Force = "force",
        #[default]
        Require = "require",
        Optional = "optional",
        Disable = "disable",
        Forbid = "forbid",
    }
}

words! {
    /// What the guest's clock counts from.
    ClockOffset {
        #[default]
        Utc = "utc",
        Localtime = "localtime",
        Timezone = "timezone",
        Variable = "variable",
    }
}

words! {
    ControllerKind {
        #[default]
        Usb = "usb",
        Scsi = "scsi",
        VirtioSerial = "virtio-serial",
        Pci = "pci",
        Sata = "sata",
    }
}

words! {
    /// What a watchdog does that nobody feeds.
    WatchdogAction {
        Poweroff = "poweroff",
        #[default]
        Reset = "reset",
        Shutdown = "shutdown",
    }
}

//! What differs between two members that refuse each other, for people.

use muster_protocol::Difference;

/// The name of the setting, its value here, and that of the other member.
pub(super) fn words(difference: Difference) -> [String; 3] {
    let number = difference.parameter as i32;
    let value = |value| muster_shm::setting_value(number, value);
    let setting = muster_shm::setting(number).to_owned();
    [setting, value(difference.own), value(difference.other)]
}
